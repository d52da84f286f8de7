-- The body's messages are published: they take the place of the results, until each was received.
-- KEYS: see open.lua
-- arg: token (the dispatch lease), records {{slot, order, queue, task_id}}; the messages are the arguments from ARGV[2] on
-- Returns 2 when nothing is left to wait for and the join is gone, 1, or 0 when another process has the lease.
local JOIN, SLOTS, MESSAGES = KEYS[1], KEYS[3], KEYS[4]
local join = redis.call('HMGET', JOIN, 'state', 'lease', 'expire_s')
if join[1] ~= 'ready' or join[2] ~= arg.token then return 0 end
redis.call('DEL', KEYS[2], SLOTS, MESSAGES)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = 0
for i, record in ipairs(arg.records) do
  local slot, order, queue, task_id = unpack(record)
  if redis.call('HEXISTS', JOIN, 'got:' .. slot) == 0 then
    left = left + 1
    redis.call('HSET', SLOTS, slot, cmsgpack.pack({order, 'w', queue, now, '', '', 0, false, task_id}))
    redis.call('HSET', MESSAGES, slot, ARGV[i + 1])
  end
end
if left == 0 then
  redis.call('DEL', JOIN)
  return 2
end
redis.call('HSET', JOIN, 'state', 'sent')
if tonumber(join[3]) > 0 then
  for _, key in ipairs({JOIN, SLOTS, MESSAGES}) do redis.call('EXPIRE', key, join[3]) end
end
return 1
