-- Writes a report in the place of its last one, and notes when, by this server's clock: those of machines differ.
-- KEYS: the report, the index (sorted set of the reports' keys by time, ms)
-- ARGV: the report, its expiry (ms), how much longer the index keeps its name (ms)
-- Returns the time (ms).
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local known_ms = ARGV[2] + ARGV[3]
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], now_ms, KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - known_ms)
redis.call('PEXPIRE', KEYS[2], known_ms)
return now_ms
