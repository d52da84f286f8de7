-- Notes a dead letter, and acknowledges its message in the same step, so that it is never in neither place.
-- KEYS: ids (sorted set, by time in ms), letters (hash: id -> JSON), unacked (hash), its index (sorted set).
-- ARGV: id, letter, how many letters to keep, delivery tag ('' where there is no message to acknowledge).
-- Returns 1, or 0 when the message is not unacknowledged any more: somebody else has it.
local ids, letters, unacked, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, letter, most, tag = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if tag ~= '' then
  redis.call('ZREM', index, tag)
  if redis.call('HDEL', unacked, tag) == 0 then return 0 end
end
local now = redis.call('TIME')
redis.call('ZADD', ids, now[1] * 1000 + math.floor(now[2] / 1000), id)
redis.call('HSET', letters, id, letter)
local more = redis.call('ZCARD', ids) - most
if more > 0 then
  local oldest = redis.call('ZPOPMIN', ids, more)
  for i = 1, #oldest, 2 do redis.call('HDEL', letters, oldest[i]) end
end
return 1
