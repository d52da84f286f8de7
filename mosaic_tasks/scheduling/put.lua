-- Stores what a schedule says.
-- KEYS: <ns>:schedules         set   the names of the schedules
--       <ns>:schedule:<name>   hash  said, plan, timing, owner, last, ran, paused, problem (see schedules.py)
-- ARGV: name, said, plan, timing, owner (tenant and workflow)
-- Returns 'added', 'changed', 'same', or 'other': there is one of this name of another owner, and it stays.
-- A schedule counts its ticks from the moment on at which it was added, or at which its timing was changed.
local NAMES, ONE = unpack(KEYS)
local name, said, plan, timing, owner = unpack(ARGV)
local before = redis.call('HMGET', ONE, 'said', 'timing', 'owner')
if before[1] == said and before[2] == timing then return 'same' end
if before[3] and before[3] ~= owner then return 'other' end
redis.call('SADD', NAMES, name)
redis.call('HSET', ONE, 'said', said, 'plan', plan, 'timing', timing, 'owner', owner)
redis.call('HDEL', ONE, 'problem')
if before[2] ~= timing then redis.call('HSET', ONE, 'last', redis.call('TIME')[1]) end
return before[1] and 'changed' or 'added'
