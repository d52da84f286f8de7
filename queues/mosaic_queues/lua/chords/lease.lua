-- Takes or prolongs the lease to dispatch the body of a complete join.
-- KEYS: see open.lua
-- arg: seen (the lease that the caller saw), token (the new one)
-- Returns 1, or 0 when another process has it.
local join = redis.call('HMGET', KEYS[1], 'state', 'lease')
if join[1] ~= 'ready' or join[2] ~= arg.seen then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'lease', arg.token, 'at_ms', time[1] * 1000 + math.floor(time[2] / 1000))
return 1
