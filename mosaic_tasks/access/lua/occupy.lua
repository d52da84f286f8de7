-- Takes one of the places for a tenant's open runs.
-- KEYS[1]: <namespace>:{access}:open:<tenant>   sorted set   runs, and submissions under way, by when they lapse (ms)
-- arg: place: its name; limit: how many there are; lapse: (ms) how long it is held
-- Returns 1; 0: none is free.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= arg.limit then return 0 end
redis.call('ZADD', KEYS[1], now + arg.lapse, arg.place)
redis.call('PEXPIRE', KEYS[1], math.max(arg.lapse, redis.call('PTTL', KEYS[1])))
return 1
