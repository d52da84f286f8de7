-- A submission came to nothing: its place is free, unless somebody else holds it too, or a run has it already.
-- KEYS[1], KEYS[2]: as in occupy.lua
-- arg: place, holder: as in occupy.lua
if redis.call('SREM', KEYS[2], arg.holder) == 0 or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('ZREM', KEYS[1], arg.place)
