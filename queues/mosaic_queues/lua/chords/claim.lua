-- A worker received a task of a chord: a header is claimed for its process, a body needs no watching any more.
-- KEYS: see open.lua
-- arg: slot, order, queue, holder, tag, acks_late, task_id; body: whether it is the body's
-- Returns 1; 2 when that was the last body and the join is gone; 0 when there is nothing to claim.
local JOIN, PARTS, SLOTS, MESSAGES = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local join = redis.call('HMGET', JOIN, 'state', 'expire_s')
local state, expire_s = join[1], tonumber(join[2])
if not state then return 0 end
if arg.body then
  if state ~= 'sent' then
    redis.call('HSET', JOIN, 'got:' .. arg.slot, 1)
    return 1
  end
  redis.call('HDEL', SLOTS, arg.slot)
  redis.call('HDEL', MESSAGES, arg.slot)
  if redis.call('EXISTS', SLOTS) == 1 then return 1 end
  redis.call('DEL', unpack(KEYS))
  return 2
end
if state ~= 'open' or redis.call('HEXISTS', PARTS, arg.slot) == 1 then return 0 end
local losses = 0
local raw = redis.call('HGET', SLOTS, arg.slot)
if raw then
  local seen = cmsgpack.unpack(raw)
  for i = 1, 3 do
    if seen[1][i] > arg.order[i] then return 0 end
    if seen[1][i] < arg.order[i] then
      redis.call('HDEL', MESSAGES, arg.slot)
      break
    end
  end
  losses = seen[7]
end
redis.call('HSET', SLOTS, arg.slot, cmsgpack.pack({arg.order, 'c', arg.queue, 0, arg.holder, arg.tag, losses,
  arg.acks_late, arg.task_id}))
if not raw and expire_s > 0 then redis.call('EXPIRE', SLOTS, expire_s) end
return 1
