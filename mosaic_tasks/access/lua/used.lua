-- Notes that a key was used just now; of one that was revoked meanwhile nothing.
-- KEYS[1]: the key's hash
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'used', now) end
return 1
