-- Gives a call all that it needs, or nothing.
-- arg: permit, takes, leases, charges, breaker: as in a record; the name and the policy of the breaker, or false
--      forced: whatever the limits say, and without taking from buckets; replaces: older permits that are given back first
-- Returns {blocker, name, wait_ms, is_probe}.
local quiet = tidy()
if arg.breaker == '' then arg.breaker = false end
local breaker = arg.breaker and read_breaker(arg.breaker[NAME])

-- Until the next permit lapses, if nobody renews it. Who waits is heard in between, so that the pause is not mistaken
-- for one of the server.
local function next_lapse()
  local first = redis.call('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')
  local lapse_ms = math.max(tonumber(first[2] or now), quiet) - now
  return math.max(math.min(lapse_ms, math.floor(math.min(arg.expiry_ms, GRACE) / 4)), 1)
end

-- What does not let a charge through, and for how long.
local function charge_block(charge)
  local limit, amount = charge[LIMIT], charge[AMOUNT]
  local spent, reserved = read_account(charge[KEY])
  if limit < 0 or spent + reserved + amount <= limit then return nil end
  if spent + amount <= limit then return 'budget', 0 end
  if charge[DAILY] and amount <= limit then return 'spent', DAY - now % DAY end
  return 'spent', -1
end

-- The longest wait that is known; else the first of which none is; else nothing.
local function find_block()
  local longest, unknown = {'', '', 0, false}, nil
  local function known(blocker, name, wait)
    if wait > longest[3] then longest = {blocker, name, wait, false} end
  end
  for _, take in ipairs(arg.takes) do known('bucket', take[NAME], bucket_wait(take, take[AMOUNT])) end
  if breaker then
    local wait = breaker_wait(breaker)
    if wait < 0 then unknown = {'probe', arg.breaker[NAME], 0, false} end
    known('breaker', arg.breaker[NAME], wait)
  end
  for _, lease in ipairs(arg.leases) do
    local weight = tonumber(redis.call('HGET', LEASES, 'w:' .. lease[NAME]) or 0)
    if lease[LIMIT] >= 0 and weight + lease[AMOUNT] > lease[LIMIT] then
      unknown = unknown or {'lease', lease[NAME], 0, false}
    end
  end
  for _, charge in ipairs(arg.charges) do
    local blocker, wait = charge_block(charge)
    if blocker == 'spent' and wait < 0 then return {blocker, charge[NAME], wait, false} end
    if blocker == 'budget' then unknown = unknown or {blocker, charge[NAME], 0, false} end
    if blocker == 'spent' then known(blocker, charge[NAME], wait) end
  end
  if longest[1] ~= '' or not unknown then return longest end
  unknown[3] = next_lapse()
  local kind = unknown[1] == 'probe' and 'breaker' or unknown[1]
  redis.call('SET', PREFIX .. 'waits:' .. kind .. ':' .. unknown[2], 1, 'PX', unknown[3] + UNIT)
  return unknown
end

local old, is_lapsed = find(arg.permit)
if old and not is_lapsed and #arg.replaces == 0 then
  local passed = old[BREAKER] and read_breaker(old[BREAKER][NAME])
  return cmsgpack.pack({'', '', 0, passed and passed.probe == arg.permit or false})
end
for _, permit in ipairs({arg.permit, unpack(arg.replaces)}) do
  local replaced, has_lapsed = find(permit)
  if replaced then
    forget(permit)
    if not has_lapsed then give_back(replaced) end
  end
end

for _, charge in ipairs(arg.charges) do charge[KEY] = account_key(charge[NAME], charge[DAILY]) end
local is_probe = false
if not arg.forced then
  local blocked = find_block()
  if blocked[1] ~= '' then return cmsgpack.pack(blocked) end
  for _, take in ipairs(arg.takes) do
    local level, held = read_bucket(take)
    write_bucket(take, level - take[AMOUNT] * UNIT, held)
  end
  if breaker and breaker.state ~= 'closed' then
    if breaker.state == 'open' then breaker.moved = now end
    breaker.state, breaker.probe, is_probe = 'half', arg.permit, true
    write_breaker(arg.breaker[NAME], breaker)
  end
end
local record = {now, arg.takes, arg.leases, arg.charges, arg.breaker}
hold(record, 1)
redis.call('HSET', RECORDS, arg.permit, cmsgpack.pack(record))
redis.call('ZADD', PERMITS, now + arg.expiry_ms, arg.permit)
for _, key in ipairs({PERMITS, RECORDS, LEASES}) do redis.call('PEXPIRE', key, 2 * DAY) end
return cmsgpack.pack({'', '', 0, is_probe})
