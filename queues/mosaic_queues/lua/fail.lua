-- Records the failure of a call: another attempt after a pause, or the end of the run.
-- arg: holder, id, fence, error, retry_ms (false: the run fails)
-- Returns 1, or 0 when the claim is stale.
local call = states({arg.id})[1]
if not (call and call[STATE] == CLAIMED and call[FENCE] == arg.fence) then return 0 end
if not arg.retry_ms then
  close_run('failed', arg.error, {{'failed', arg.id, arg.error, arg.holder}})
  return 1
end
local now = record({{'retry', arg.id, arg.error, arg.retry_ms, arg.holder}})
call[STATE], call[FAILURES], call[AT], call[HOLDER] = DELAYED, call[FAILURES] + 1, now + arg.retry_ms, ''
redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call))
return 1
