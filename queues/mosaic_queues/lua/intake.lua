-- One turn of a worker at a Redis broker of kombu's: acknowledges what ended, notes what came, and takes more.
-- KEYS: unacked (hash), its index (sorted set), then the lists of the queues, the most urgent priority first and within
--   a priority in the order of the consumer's turns.
-- ARGV: now (Unix seconds), room (how much may be taken), queues (lists of one priority), acknowledged (count), their
--   tags, then tag and entry of each message that came and is to be noted.
-- A message weighs what its header `mosaic_slots` says, a whole number of at least 1, otherwise 1. What is taken is noted as
-- unacked in the same step, as kombu notes it: a message is never in neither place.
-- Returns {index of the list, message, ...} of what was taken.
local unacked, index = KEYS[1], KEYS[2]
local now, room, width, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function note(tag, entry)
  redis.call('ZADD', index, now, tag)
  redis.call('HSET', unacked, tag, entry)
end

redis.call('ZREM', index, '')   -- from a script that has begun to write, a full server takes all: what came must be noted
for i = 5, 4 + count do
  redis.call('ZREM', index, ARGV[i])
  redis.call('HDEL', unacked, ARGV[i])
end
for i = 5 + count, #ARGV, 2 do note(ARGV[i], ARGV[i + 1]) end

local taken = {}

-- Takes the next message of a list; false when there is none, or one that nobody can read (which kombu tells).
local function take(position)
  local list = KEYS[position + 2]
  local raw = redis.call('RPOP', list)
  if not raw then return false end
  local readable, message = pcall(cjson.decode, raw)
  local properties = readable and type(message) == 'table' and message.properties
  if type(properties) ~= 'table' or type(properties.delivery_tag) ~= 'string'
      or type(properties.delivery_info) ~= 'table' then
    redis.call('RPUSH', list, raw)
    return false
  end
  local info = properties.delivery_info
  note(properties.delivery_tag,
    '[' .. raw .. ', ' .. cjson.encode(info.exchange) .. ', ' .. cjson.encode(info.routing_key) .. ']')
  taken[#taken + 1] = position
  taken[#taken + 1] = raw
  local weight = type(message.headers) == 'table' and message.headers.mosaic_slots
  local is_weight = type(weight) == 'number' and weight >= 1 and weight == math.floor(weight)
  room = room - (is_weight and weight or 1)
  return true
end

for first = 1, #KEYS - 2, width do
  local left = true
  while left and room > 0 do
    left = false
    for position = first, first + width - 1 do
      if room > 0 and take(position) then left = true end
    end
  end
end
return taken
