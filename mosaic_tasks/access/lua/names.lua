-- Put between common.lua and a step of API keys.
-- KEYS[1]: <namespace>:{access}:names   hash   name of a key -> ids, parted by spaces: the one in force first, then those
--                                              that it replaced; and '' -> '1': there has been a key, the gate stays closed
-- PREFIX being what stands before `names`:
--   key:<id>   hash   name, tenant, scopes (parted by spaces), hash (SHA-256 of the key), made, expires (ms, 0: never),
--                     lifetime (ms, 0: without end), used (ms, coarsely; 0: never)
local NAMES = KEYS[1]
local PREFIX = string.sub(NAMES, 1, -6)
local KEPT = 7 * 86400000   -- an expired key is still listed for so long

local function key_of(id) return PREFIX .. 'key:' .. id end

-- Those of a name that are still there.
local function ids_of(name)
  local found = {}
  for id in string.gmatch(redis.call('HGET', NAMES, name) or '', '%S+') do
    if redis.call('EXISTS', key_of(id)) == 1 then found[#found + 1] = id end
  end
  return found
end

local function expire(id, at)
  redis.call('HSET', key_of(id), 'expires', at)
  if at > 0 then redis.call('PEXPIREAT', key_of(id), at + KEPT) end
end
