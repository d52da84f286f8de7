-- The shadow of a call has its answer: from now on its process holds the call itself, whoever held it.
-- arg: holder, id, shadow, fence (of the shadow's claim)
-- Returns msgpack {claim {id, fence, failures, losses} | false, holder}: false where the call is over or the shadow was dropped;
-- and who has lost the call by this.
local call, shadow = unpack(states({arg.id, arg.shadow}))
if not is_held(shadow, arg.fence) then
  if call and call[STATE] == CLAIMED and call[HOLDER] == arg.holder then   -- sent again, because its answer was lost
    return cmsgpack.pack({{arg.id, call[FENCE], call[FAILURES], call[LOSSES]}, ''})
  end
  return cmsgpack.pack({false, ''})
end
if not call then
  drop_shadows({arg.shadow})
  return cmsgpack.pack({false, ''})
end
local first = call[STATE] == CLAIMED and call[HOLDER] or ''
local now = record({{'overtaken', {arg.id}, arg.holder}})
local taken = {CLAIMED, call[FENCE] + 1, call[FAILURES], call[LOSSES], shadow[QUEUE], now, arg.holder}
redis.call('HSET', CALLS, arg.id, cmsgpack.pack(taken))
redis.call('HSET', OUT, arg.id .. '>', redis.call('HGET', OUT, arg.shadow .. '>'))
drop_shadows({arg.shadow})
return cmsgpack.pack({{arg.id, taken[FENCE], taken[FAILURES], taken[LOSSES]}, first})
