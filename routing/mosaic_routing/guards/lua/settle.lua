-- Takes a permit back, once; what its call used counts instead of what was predicted.
-- arg: permit, outcome (good, failed, none), pause_ms, jitter, tokens and cost (-1: as predicted),
--      requests_told and tokens_told {remaining, reset_ms}
-- Returns whether there was such a permit: 1 or 0.
tidy()

local function counted(breaker, policy, is_bad)
  if now < breaker.window or now - breaker.window >= policy[WINDOW] then
    breaker.window, breaker.good, breaker.bad = now, 0, 0
  end
  local field = is_bad and 'bad' or 'good'
  breaker[field] = breaker[field] + 1
end

local function is_unwell(breaker, policy)
  local calls = breaker.good + breaker.bad
  return calls >= policy[CALLS] and breaker.bad * 100 >= policy[PERCENT] * calls
end

local function opened(breaker, policy, unwell)
  local is_calm = breaker.state == 'closed' and now - breaker.moved >= policy[WINDOW]
  breaker.openings = is_calm and 1 or breaker.openings + 1
  local open = math.min(policy[OPEN_MAX], policy[OPEN] * 2 ^ math.min(breaker.openings - 1, MAX_DOUBLINGS))
  open = open + math.floor(open * arg.jitter / JITTER_PARTS)
  breaker.state, breaker.unwell, breaker.moved, breaker.probe = 'open', unwell, now, ''
  breaker['until'] = now + math.max(open, math.min(arg.pause_ms, LONGEST))
end

-- One that was unwell is counted anew, and opens for longer if it is again.
local function closed(breaker)
  if breaker.unwell then
    breaker.window, breaker.good, breaker.bad = now, 0, 0
  else
    breaker.openings = 0
  end
  breaker.state, breaker.unwell, breaker.moved, breaker.probe, breaker['until'] = 'closed', false, now, '', 0
end

-- The breaker after a call ended that began then.
local function ended(breaker, policy, began)
  local is_probe = breaker.state == 'half' and breaker.probe == arg.permit
  if arg.outcome == 'none' then
    if is_probe then breaker.probe = '' end
    return
  end
  local failed = arg.outcome == 'failed'
  local is_bad = failed or (policy[SLOW] > 0 and now - began >= policy[SLOW])
  local failed_began = breaker.failed_began
  counted(breaker, policy, is_bad)
  if failed then breaker.failed_began = math.max(failed_began, began) end
  if is_probe then
    if is_bad then opened(breaker, policy, breaker.unwell) else closed(breaker) end
  elseif breaker.state == 'closed' then
    local unwell = is_bad and is_unwell(breaker, policy)
    if unwell or (failed and began >= breaker.moved) then opened(breaker, policy, unwell) end
  elseif failed then
    if breaker.state == 'open' then
      breaker['until'] = math.max(breaker['until'], now + math.min(arg.pause_ms, LONGEST))
    end
  elseif not breaker.unwell and not is_bad and began > failed_began then
    closed(breaker)
  end
end

local record, is_lapsed = find(arg.permit)
if not record then return cmsgpack.pack(0) end
forget(arg.permit)
if not is_lapsed then give_back(record) end

for _, take in ipairs(record[TAKES]) do
  local level, held = read_bucket(take)
  if take[TOKENS] and arg.tokens >= 0 then
    level = math.min(level + (take[AMOUNT] - arg.tokens) * UNIT, take[SIZE] * UNIT)
  end
  level, held = told(take, level, held)
  write_bucket(take, level, held)
end

for _, charge in ipairs(record[CHARGES]) do
  local key, spent = PREFIX .. 'budget:' .. charge[KEY], read_account(charge[KEY])
  spent = spent + (arg.cost < 0 and charge[AMOUNT] or arg.cost)
  redis.call('HSET', key, 'spent', math.min(spent, MAX_SPENT))
  redis.call('PEXPIRE', key, (charge[DAILY] and 2 or 30) * DAY)
end

if record[BREAKER] then
  local name = record[BREAKER][NAME]
  local breaker = read_breaker(name)
  local was_half = breaker.state == 'half'
  ended(breaker, record[BREAKER], record[BEGAN])
  write_breaker(name, breaker)
  if was_half then ring('breaker:' .. name) end
end
return cmsgpack.pack(1)
