-- Records the failure of a call: another attempt after a pause, or the end of the run.
-- arg: holder, id, fence, error, retry_ms (false: the run fails; but while the call has a shadow, that may still answer)
-- Returns msgpack {counts, {{holder, {ids}}}}: false when the claim is stale; and whose claims ended with the run.
local call = states({arg.id})[1]
if not is_held(call, arg.fence) then return cmsgpack.pack({false, {}}) end
local PATIENCE_MS = 5000
local retry_ms = arg.retry_ms or (call[HEDGED] and states({arg.id .. SHADOW})[1] and PATIENCE_MS)
if not retry_ms then
  redis.call('HDEL', CALLS, arg.id)
  local holders = held()
  close_run('failed', arg.error, {{'failed', arg.id, arg.error, arg.holder}})
  return cmsgpack.pack({true, holders})
end
local now = record({{'retry', arg.id, arg.error, retry_ms, arg.holder}})
call[STATE], call[FAILURES], call[AT], call[HOLDER] = DELAYED, call[FAILURES] + 1, now + retry_ms, ''
redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call))
return cmsgpack.pack({true, {}})
