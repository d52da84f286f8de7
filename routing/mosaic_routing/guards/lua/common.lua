-- Shared by all steps of the guards; put before each script, after clock.lua. `memory.py` has the same steps in Python.
--
-- KEYS[1]: <namespace>:{guards}:permits. It names the slot: a call may need any limits together, so all share one.
-- In that slot, PREFIX being what stands before `permits`:
--   permits          sorted set  permits, by expiry (ms)
--   lapsed           sorted set  permits that expired and hold nothing, by when they are forgotten (ms)
--   records          hash        permit -> msgpack {began_ms, takes, leases, charges, breaker}
--   leases           hash        n:<thing> -> number of leases, w:<thing> -> their weight; no field: none
--   heard            hash        at: the last step (ms); quiet: nothing lapses before (ms)
--   bucket:<name>    hash        level (60,000ths), at (ms), held (ms); no key: full
--   breaker:<name>   hash        what breakers.py names; no key: closed, and nothing counted
--   budget:<account> hash        spent, reserved (micro-dollars); a day's account ends with #<day since 1970>
--   waits:<what>     string      somebody waits for a ring; rings are published on the channel `rings`
-- ARGV[1] is one msgpack map, which holds expiry_ms in every step. A reply is msgpack. Numbers are whole and below 2^53.
local arg = cmsgpack.unpack(ARGV[1])
local PREFIX = string.sub(KEYS[1], 1, -8)
local PERMITS, LAPSED, RECORDS = KEYS[1], PREFIX .. 'lapsed', PREFIX .. 'records'
local LEASES, HEARD = PREFIX .. 'leases', PREFIX .. 'heard'
local BEGAN, TAKES, LEASED, CHARGES, BREAKER = 1, 2, 3, 4, 5   -- of a record
local NAME, AMOUNT, RATE, SIZE, TOKENS, TOLD = 1, 2, 3, 4, 5, 6   -- of a take
local LIMIT, DAILY, KEY = 3, 4, 5   -- of a lease (name, weight, limit) and a charge (account, amount, limit); -1: no limit
local WINDOW, CALLS, PERCENT, SLOW, OPEN, OPEN_MAX = 2, 3, 4, 5, 6, 7   -- of a breaker's policy, after its name
local UNIT, MAX_DEBT, MAX_REFILL, LONGEST = 60000, 3600000, 7200000, 3600000
local MAX_SPENT, MAX_DOUBLINGS, JITTER_PARTS = 2000000000000000, 20, 4000
local DAY, TIDY, GRACE, FORGET = 86400000, 64, 10000, 3600000
local now = server_ms()

-- Tells who waits for it that something may go on.
local function ring(what)
  if redis.call('DEL', PREFIX .. 'waits:' .. what) == 1 then
    redis.call('PUBLISH', PREFIX .. 'rings', what)
  end
end

-- The level of a bucket now, and until when it is held.
local function read_bucket(take)
  local full = take[SIZE] * UNIT
  local raw = redis.call('HMGET', PREFIX .. 'bucket:' .. take[NAME], 'level', 'at', 'held')
  if not raw[1] then return full, 0 end
  local passed = math.min(math.max(now - raw[2], 0), MAX_REFILL)
  local held = math.min(tonumber(raw[3]), now + LONGEST)
  return math.min(full, raw[1] + passed * take[RATE]), held > now and held or 0
end

local function write_bucket(take, level, held)
  local key, full = PREFIX .. 'bucket:' .. take[NAME], take[SIZE] * UNIT
  level = math.max(math.min(level, full), -take[RATE] * MAX_DEBT)
  if level == full and held <= now then
    redis.call('DEL', key)
  else
    redis.call('HSET', key, 'level', level, 'at', now, 'held', held)
    redis.call('PEXPIRE', key, math.ceil((full - level) / take[RATE]) + math.max(held - now, 0) + UNIT)
  end
end

-- A bucket after what its provider told of it (requests_told, tokens_told), where that is about it; it never gains by that.
local function told(take, level, held)
  local said = take[TOKENS] and arg.tokens_told or arg.requests_told
  local remaining, reset = said[1], said[2]
  if not take[TOLD] or remaining < 0 then return level, held end
  if remaining == 0 then held = math.max(held, now + math.min(math.max(reset, 0), LONGEST)) end
  return math.min(level, remaining * UNIT), held
end

-- Until so much can be taken; 0: now.
local function bucket_wait(take, amount)
  local level, held = read_bucket(take)
  local missing = math.min(amount * UNIT, take[SIZE] * UNIT) - level
  return math.max(math.ceil(missing / take[RATE]), held - now, 0)
end

local NUMBERS = {'moved', 'until', 'openings', 'failed_began', 'window', 'good', 'bad'}

local function read_breaker(name)
  local raw = redis.call('HMGET', PREFIX .. 'breaker:' .. name, 'state', 'probe', 'unwell', unpack(NUMBERS))
  local breaker = {state = raw[1] or 'closed', probe = raw[2] or '', unwell = raw[3] == '1'}
  for i, field in ipairs(NUMBERS) do breaker[field] = tonumber(raw[i + 3] or 0) end
  return breaker
end

local function write_breaker(name, breaker)
  local key = PREFIX .. 'breaker:' .. name
  local values = {'state', breaker.state, 'probe', breaker.probe, 'unwell', breaker.unwell and 1 or 0}
  for _, field in ipairs(NUMBERS) do
    values[#values + 1] = field
    values[#values + 1] = breaker[field]
  end
  redis.call('HSET', key, unpack(values))
  redis.call('PEXPIRE', key, DAY)
end

-- Until a call may pass; 0: now, -1: when the probe has ended.
local function breaker_wait(breaker)
  if breaker.state == 'open' then
    return math.max(math.min(breaker['until'] - now, 2 * LONGEST), 0)
  end
  return breaker.state == 'half' and breaker.probe ~= '' and -1 or 0
end

-- Money spent and reserved.
local function read_account(key)
  local raw = redis.call('HMGET', PREFIX .. 'budget:' .. key, 'spent', 'reserved')
  return tonumber(raw[1] or 0), tonumber(raw[2] or 0)
end

local function account_key(account, is_daily)
  return is_daily and account .. '#' .. math.floor(now / DAY) or account
end

-- What a permit holds is counted (sign 1), or not any more (-1).
local function hold(record, sign)
  for _, lease in ipairs(record[LEASED]) do
    for field, by in pairs({n = 1, w = lease[AMOUNT]}) do
      field = field .. ':' .. lease[NAME]
      if redis.call('HINCRBY', LEASES, field, sign * by) <= 0 then redis.call('HDEL', LEASES, field) end
    end
  end
  for _, charge in ipairs(record[CHARGES]) do
    local key = PREFIX .. 'budget:' .. charge[KEY]
    redis.call('HINCRBY', key, 'reserved', sign * charge[AMOUNT])
    redis.call('PEXPIRE', key, (charge[DAILY] and 2 or 30) * DAY)
  end
end

local function give_back(record)
  hold(record, -1)
  for _, lease in ipairs(record[LEASED]) do
    if lease[LIMIT] >= 0 then ring('lease:' .. lease[NAME]) end
  end
  for _, charge in ipairs(record[CHARGES]) do
    if charge[LIMIT] >= 0 then ring('budget:' .. charge[NAME]) end
  end
end

-- The record of a permit, and whether it has lapsed; false when there is none.
local function find(permit)
  local raw = redis.call('HGET', RECORDS, permit)
  return raw and cmsgpack.unpack(raw), raw and not redis.call('ZSCORE', PERMITS, permit)
end

local function forget(permit)
  redis.call('ZREM', PERMITS, permit)
  redis.call('ZREM', LAPSED, permit)
  redis.call('HDEL', RECORDS, permit)
end

-- Takes from an expired permit what it holds. Its record stays: the process may come back, and its call has cost something.
local function lapse(permit)
  local record = find(permit)
  redis.call('ZREM', PERMITS, permit)
  if not record then return end
  redis.call('ZADD', LAPSED, now + FORGET, permit)
  give_back(record)
  if record[BREAKER] then
    local name = record[BREAKER][NAME]
    local breaker = read_breaker(name)
    if breaker.probe == permit then
      breaker.probe = ''
      write_breaker(name, breaker)
      ring('breaker:' .. name)
    end
  end
end

-- Permits that expired lapse, some in each step. After a pause in which nobody was heard, as when the server was down,
-- the living first get the time to renew theirs; but for what was overdue by that much before the pause, lest nothing
-- lapses where calls are rare. Returns when that time is over.
local function tidy()
  local raw = redis.call('HMGET', HEARD, 'at', 'quiet')
  local heard, quiet = tonumber(raw[1] or 0), tonumber(raw[2] or 0)
  local grace = math.min(arg.expiry_ms, GRACE)
  local was_silent = now - heard > math.floor(grace / 2)
  quiet = was_silent and now + grace or math.min(quiet, now + grace)
  redis.call('HSET', HEARD, 'at', now, 'quiet', quiet)
  if was_silent or now >= quiet then
    local overdue = was_silent and heard - grace or now
    for _, permit in ipairs(redis.call('ZRANGEBYSCORE', PERMITS, '-inf', overdue, 'LIMIT', 0, TIDY)) do
      lapse(permit)
    end
  end
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', LAPSED, '-inf', now, 'LIMIT', 0, TIDY)) do
    forget(permit)
  end
  -- They expire together, a day after the longest permit: no counter outlives what it counts.
  for _, key in ipairs({PERMITS, LAPSED, RECORDS, LEASES, HEARD}) do
    redis.call('PEXPIRE', key, 2 * DAY)
  end
  return quiet
end
