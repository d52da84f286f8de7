-- Takes a dead letter out, and perhaps puts its message back into its queue in the same step.
-- KEYS: ids (sorted set), letters (hash), the list of the queue.
-- ARGV: id, message ('' to put nothing back).
-- Returns 1, or 0 when there is no such letter any more.
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' then redis.call('LPUSH', KEYS[3], ARGV[2]) end
return 1
