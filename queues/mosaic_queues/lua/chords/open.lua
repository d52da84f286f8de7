-- Opens the join of a chord. One that is open already stays as it is.
-- KEYS of all chord scripts, in the slot of {group id}:
--   1 join      hash  state (open, ready, sent), body, shape, size, extra, count, ok, quorum, expire_s, lease, at_ms,
--                     got:<slot> for a body task received before its dispatch was recorded
--   2 parts     hash  finished headers: slot -> part
--   3 slots     hash  what is on its way: slot -> msgpack {order, status, queue, at_ms (of a message), holder, tag, losses,
--                     acks_late, task_id}; status w: waits in a queue, c: claimed
--   4 messages  hash  slot -> the task message, to be sent again
-- arg: quorum, expire_s; ARGV[2] body, ARGV[3] shape
-- Returns 1, or 0 when it was open.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'state', 'open', 'body', ARGV[2], 'shape', ARGV[3], 'quorum', arg.quorum,
  'expire_s', arg.expire_s, 'count', 0, 'ok', 0, 'extra', 0)
if arg.expire_s > 0 then redis.call('EXPIRE', KEYS[1], arg.expire_s) end
return 1
