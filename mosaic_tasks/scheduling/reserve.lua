-- Notes that an entry of RedBeat was sent, as RedBeat does, but only for the beat that holds the lock.
-- KEYS: the lock of the beats, the entry's hash, RedBeat's sorted set of entries by when they are due
-- ARGV: token, meta (JSON), score
-- Returns 1; 0: the lock is another's, or nobody's. An entry that was removed meanwhile stays so.
local LOCK, ENTRY, SCHEDULE = unpack(KEYS)
local token, meta, score = unpack(ARGV)
if redis.call('GET', LOCK) ~= token then return 0 end
if redis.call('HEXISTS', ENTRY, 'definition') == 1 then
  redis.call('HSET', ENTRY, 'meta', meta)
  redis.call('ZADD', SCHEDULE, score, ENTRY)
end
return 1
