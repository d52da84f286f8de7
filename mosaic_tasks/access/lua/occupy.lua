-- Takes one of the places for a tenant's open runs. Who starts what another one is starting shares its place.
-- KEYS[1]: <namespace>:{access}:open:<tenant>           sorted set   runs, and submissions under way, by when they lapse (ms)
-- KEYS[2]: <namespace>:{access}:open:<tenant>:<place>   set          who holds it
-- arg: place: its name; holder: of this submission alone; limit: how many there are; lapse: (ms) how long it is held
-- Returns 1; 0: none is free.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], arg.place) and redis.call('ZCARD', KEYS[1]) >= arg.limit then return 0 end
redis.call('ZADD', KEYS[1], now + arg.lapse, arg.place)
redis.call('PEXPIRE', KEYS[1], math.max(arg.lapse, redis.call('PTTL', KEYS[1])))
redis.call('SADD', KEYS[2], arg.holder)
redis.call('PEXPIRE', KEYS[2], arg.lapse)
return 1
