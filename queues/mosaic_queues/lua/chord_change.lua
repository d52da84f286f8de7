-- Changes a slot, if it is still what the caller saw.
-- KEYS: see chord_open.lua
-- arg: slot, seen (its value), new (its new value, false: it is watched no longer)
-- Returns 1, or 0 when it changed meanwhile.
if redis.call('HGET', KEYS[3], arg.slot) ~= arg.seen then return 0 end
if arg.new then
  redis.call('HSET', KEYS[3], arg.slot, arg.new)
else
  redis.call('HDEL', KEYS[3], arg.slot)
  redis.call('HDEL', KEYS[4], arg.slot)
end
return 1
