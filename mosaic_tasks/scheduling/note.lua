-- Notes what became of ticks of a schedule. Only the beat that holds the lock may, and nothing ever moves back.
-- KEYS: the lock of the beats    string  token of the one that sends
--       <ns>:schedule:<name>     hash    last: the last tick decided about; ran: the last one that has a run (Unix seconds)
--       <ns>:schedule:<name>:runs list   JSON {tick, run, at}, the newest first
-- ARGV: token, last, tick ('' for none), run, problem ('' for none), runs that are kept
-- Returns 'noted'; 'known': it was noted already; 'gone': the schedule is; 'lost': the lock is another's, or nobody's.
local LOCK, ONE, RUNS = unpack(KEYS)
local token, last, tick, run, problem, kept = unpack(ARGV)
if redis.call('GET', LOCK) ~= token then return 'lost' end
if redis.call('EXISTS', ONE) == 0 then return 'gone' end
if problem == '' then
  redis.call('HDEL', ONE, 'problem')
else
  redis.call('HSET', ONE, 'problem', problem)
end
local function raise(field, value)
  local before = tonumber(redis.call('HGET', ONE, field) or '0')
  if tonumber(value) <= before then return false end
  redis.call('HSET', ONE, field, value)
  return true
end
local is_new = last ~= '' and raise('last', last)
if tick ~= '' and raise('ran', tick) then
  local at = redis.call('TIME')[1]
  redis.call('LPUSH', RUNS, cjson.encode({tick = tonumber(tick), run = run, at = tonumber(at)}))
  redis.call('LTRIM', RUNS, 0, tonumber(kept) - 1)
  is_new = true
end
return is_new and 'noted' or 'known'
