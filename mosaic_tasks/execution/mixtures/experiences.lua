-- Notes what a mixture taught of its experts: once, and in the place of what was noted for it before.
-- KEYS, of one slot: <prefix>scopes          sorted set  scopes of a tenant, by when something was noted in them last (ms)
--                    <prefix>of:<scope>      hash        expert -> msgpack map, as `experience.Experience`
--                    <prefix>noted:<mixture> string      msgpack {begun, judged}: what was added for a mixture of a run
-- ARGV[1]: one msgpack map:
--    scope     name of the scope
--    begun     when the mixture began (ms): tells one execution of it from the next
--    scored    whether this is a score; what a mixture tells by itself goes nowhere where something was noted of it
--    judged    {expert = {right, wrong, weak_right, weak_wrong, together = {other = {both wrong, both judged}}}}: added to what
--              is known, and taken back from it when something else is noted for this mixture
--    observed  {{expert, quality, is_faulty, seconds, tokens, usd}}: calls, of the last three false what is not known; never taken back
--    share     least share of a call in the means; most, most_weak: outcomes that are remembered; experts, scopes: how many
--    keep      (ms) that what is known stays after it was noted last; keep_noted: the same of what was added
-- Returns 'noted'; 'known': this execution, or a later one, was noted already; 'late': nobody knows any more whether it was.
local SCOPES, OF, NOTED = unpack(KEYS)
local PREFIX = string.sub(SCOPES, 1, -7)
local arg = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- What cannot be read counts as not there.
local function readable(raw)
  local ok, value = pcall(cmsgpack.unpack, raw or '')
  return ok and type(value) == 'table' and value or nil
end

local before = readable(redis.call('GET', NOTED))
if before and (before.begun > arg.begun or (before.begun == arg.begun and not arg.scored)) then return 'known' end
if not before and arg.begun + arg.keep_noted <= now then return 'late' end

local function sum(one, other) return math.max((tonumber(one) or 0) + other, 0) end

local SUMS = {'right', 'wrong', 'weak_right', 'weak_wrong'}
local changed = {}
local function of(expert)
  if not changed[expert] then
    local known = readable(redis.call('HGET', OF, expert)) or {}
    for _, name in ipairs(SUMS) do known[name] = sum(known[name], 0) end
    if type(known.together) ~= 'table' then known.together = {} end
    changed[expert] = known
  end
  return changed[expert]
end

local function add(judged, sign)
  for expert, more in pairs(judged) do
    local known = of(expert)
    for _, name in ipairs(SUMS) do known[name] = sum(known[name], sign * (more[name] or 0)) end
    for other, pair in pairs(more.together or {}) do
      local old = known.together[other]
      local both, of_all = unpack(type(old) == 'table' and old or {0, 0})
      known.together[other] = {sum(both, sign * pair[1]), sum(of_all, sign * pair[2])}
    end
  end
end

-- Beyond so many outcomes the older ones fade: an expert may have become another.
local function bound(sums, one, other, total, most)
  if total > most then sums[one], sums[other] = sums[one] * most / total, sums[other] * most / total end
end

if before then add(before.judged or {}, -1) end
add(arg.judged, 1)
for _, call in ipairs(arg.observed) do
  local expert, quality, is_faulty, seconds, tokens, usd = call[1], call[2], call[3], call[4], call[5], call[6]
  local known = of(expert)
  local calls = sum(known.calls, 1)
  local function mean(name, value, first)
    if not value then return end
    local old = tonumber(known[name]) or first
    known[name] = old + math.max(arg.share, first == 0 and 0 or 1 / calls) * (value - old)
  end
  known.calls, known.quality = calls, quality
  mean('faults', is_faulty and 1 or 0, 0)
  mean('seconds', seconds, seconds)
  mean('tokens', tokens, tokens)
  mean('usd', usd, usd)
end

local function put(expert, known)
  redis.call('HSET', OF, expert, cmsgpack.pack(known))
end
for expert, known in pairs(changed) do
  bound(known, 'right', 'wrong', known.right + known.wrong, arg.most)
  bound(known, 'weak_right', 'weak_wrong', known.weak_right + known.weak_wrong, arg.most_weak)
  for other, pair in pairs(known.together) do
    bound(pair, 1, 2, pair[2], arg.most)
    if pair[2] < 1e-9 then known.together[other] = nil end
  end
  if not next(known.together) then known.together = nil end   -- an empty table would be a list
  known.at_ms = now
  put(expert, known)
end

-- The experts that nobody asked for the longest time go, from the pairs of the others too.
local over = redis.call('HLEN', OF) - arg.experts
if over > 0 then
  local everyone, by_age, gone = {}, {}, {}
  local raw = redis.call('HGETALL', OF)
  for i = 1, #raw, 2 do
    everyone[raw[i]] = readable(raw[i + 1]) or {}
    by_age[#by_age + 1] = raw[i]
  end
  local function age(expert) return tonumber(everyone[expert].at_ms) or 0 end
  table.sort(by_age, function(one, other) return age(one) < age(other) or (age(one) == age(other) and one < other) end)
  for i = 1, over do
    gone[by_age[i]] = true
    redis.call('HDEL', OF, by_age[i])
  end
  for i = over + 1, #by_age do
    local known, is_less = everyone[by_age[i]], false
    for other in pairs(type(known.together) == 'table' and known.together or {}) do
      if gone[other] then known.together[other], is_less = nil, true end
    end
    if is_less then
      if not next(known.together) then known.together = nil end
      put(by_age[i], known)
    end
  end
end
redis.call('ZADD', SCOPES, now, arg.scope)
if redis.call('ZCARD', SCOPES) > arg.scopes then
  redis.call('DEL', PREFIX .. 'of:' .. redis.call('ZPOPMIN', SCOPES)[1])
end
redis.call('SET', NOTED, cmsgpack.pack({begun = arg.begun, judged = arg.judged}), 'PX', arg.keep_noted)
redis.call('PEXPIRE', OF, arg.keep)
redis.call('PEXPIRE', SCOPES, arg.keep)
return 'noted'
