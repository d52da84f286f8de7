-- Changes a slot, if it is still what the caller saw.
-- KEYS: see open.lua
-- arg: slot; ARGV[2] the value seen, ARGV[3] its new value (none: it is watched no longer)
-- Returns 1, or 0 when it changed meanwhile.
if redis.call('HGET', KEYS[3], arg.slot) ~= ARGV[2] then return 0 end
if ARGV[3] then
  redis.call('HSET', KEYS[3], arg.slot, ARGV[3])
else
  redis.call('HDEL', KEYS[3], arg.slot)
  redis.call('HDEL', KEYS[4], arg.slot)
end
return 1
