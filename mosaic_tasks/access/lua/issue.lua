-- Puts a new key in force, in one step: whoever dies before it has changed nothing, and after it all is done.
-- arg: id, name, hash
--      lifetime: (ms) 0: without end; -1: as the key that it replaces
--      to add a key: tenant, scopes
--      to replace one: grace: (ms) that the old ones stay valid at most
-- Returns 1; 0: to add: the name is taken; to replace: there is none of that name.
local old = ids_of(arg.name)
if (arg.grace ~= nil) ~= (#old > 0) then return 0 end

local tenant, scopes, lifetime = arg.tenant, arg.scopes, arg.lifetime
if #old > 0 then
  local before = redis.call('HMGET', key_of(old[1]), 'tenant', 'scopes', 'lifetime')
  tenant, scopes = before[1], before[2]
  if lifetime < 0 then lifetime = tonumber(before[3]) end
end
for _, id in ipairs(old) do
  local at = tonumber(redis.call('HGET', key_of(id), 'expires'))
  local over = now + arg.grace
  expire(id, at > 0 and math.min(at, over) or over)
end
redis.call('HSET', key_of(arg.id), 'name', arg.name, 'tenant', tenant, 'scopes', scopes, 'hash', arg.hash,
  'made', now, 'lifetime', lifetime, 'used', 0)
expire(arg.id, lifetime > 0 and now + lifetime or 0)
redis.call('HSET', NAMES, arg.name, table.concat({arg.id, unpack(old)}, ' '), '', '1')
return 1
