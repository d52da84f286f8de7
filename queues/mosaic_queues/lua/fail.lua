-- Records the failure of a call: another attempt after a pause, or the end of the run.
-- arg: holder, id, fence, error, retry_ms (false: the run fails)
-- Returns msgpack {counts, {{holder, {ids}}}}: false when the claim is stale; and whose claims ended with the run.
local call = states({arg.id})[1]
if not is_held(call, arg.fence) then return cmsgpack.pack({false, {}}) end
if not arg.retry_ms then
  redis.call('HDEL', CALLS, arg.id)
  local holders = held()
  close_run('failed', arg.error, {{'failed', arg.id, arg.error, arg.holder}})
  return cmsgpack.pack({true, holders})
end
local now = record({{'retry', arg.id, arg.error, arg.retry_ms, arg.holder}})
call[STATE], call[FAILURES], call[AT], call[HOLDER] = DELAYED, call[FAILURES] + 1, now + arg.retry_ms, ''
redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call))
return cmsgpack.pack({true, {}})
