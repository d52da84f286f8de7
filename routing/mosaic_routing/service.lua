-- Counts calls of a run that begin now; tells what its run and its tenant got before each. See ordering.py for the theory.
-- KEYS, of one slot: attained   string      what the run got (ms)
--                    seen       sorted set  tenants, by when a call of theirs began last (ms, by the server's clock)
--                    busy       sorted set  virtual time of each tenant that was seen lately (ms)
--                    idle       sorted set  that of the others, as long as it is ahead of the time of all
--                    now        string      virtual time of all (ms)
-- ARGV: tenant; busy_ms: how long one that sends nothing counts as busy; keep_ms: expiry of all keys; length of each call (ms)
-- Returns attained, lead, attained, lead, ... in ms. Costs O(log tenants) a call.
local ATTAINED, SEEN, BUSY, IDLE, NOW = unpack(KEYS)
local tenant, busy_ms, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local AT_ONCE = 64   -- tenants that become idle in one step
local time = redis.call('TIME')
local server_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now = tonumber(redis.call('GET', NOW) or 0)
local attained = tonumber(redis.call('GET', ATTAINED) or 0)

redis.call('ZADD', SEEN, server_ms, tenant)
local gone = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. server_ms - busy_ms, 'LIMIT', 0, AT_ONCE)
for _, name in ipairs(gone) do
  redis.call('ZADD', IDLE, redis.call('ZSCORE', BUSY, name) or 0, name)
  redis.call('ZREM', BUSY, name)
  redis.call('ZREM', SEEN, name)
end
local mine = tonumber(redis.call('ZSCORE', BUSY, tenant) or redis.call('ZSCORE', IDLE, tenant) or 0)
redis.call('ZREM', IDLE, tenant)

local answer = {}
for i = 4, #ARGV do
  mine = math.max(mine, now)
  redis.call('ZADD', BUSY, mine, tenant)
  now = math.max(now, tonumber(redis.call('ZRANGE', BUSY, 0, 0, 'WITHSCORES')[2]))
  answer[#answer + 1] = attained
  answer[#answer + 1] = mine - now
  attained, mine = attained + ARGV[i], mine + ARGV[i]
end
redis.call('ZADD', BUSY, mine, tenant)
redis.call('ZREMRANGEBYSCORE', IDLE, '-inf', now)
redis.call('SET', NOW, now, 'PX', keep_ms)
redis.call('SET', ATTAINED, attained, 'PX', keep_ms)
for _, key in ipairs({SEEN, BUSY, IDLE}) do redis.call('PEXPIRE', key, keep_ms) end
return answer
