-- Shared by the steps of access; put before each of them. All keys are in the slot {access}.
-- ARGV[1]: one msgpack map, which each file tells.
local arg = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
