-- Ends all keys of a name, those that are being replaced too.
-- arg: name
-- Returns how many there were.
local ids = ids_of(arg.name)
for _, id in ipairs(ids) do redis.call('DEL', key_of(id)) end
redis.call('HDEL', NAMES, arg.name)
return #ids
