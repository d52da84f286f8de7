-- How limits stand.
-- arg: leases, breakers: names; buckets {{name, 1, rate, size}}; accounts {{account, is_daily}}
-- Returns {{number, weight}, ...}, {{state, wait_ms}, ...}, {wait_ms, ...}, {{spent, reserved}, ...}.
local SLICE = 1000   -- as many as Lua can unpack, by far
tidy()
local leases, breakers, buckets, accounts = {}, {}, {}, {}
for first = 1, #arg.leases, SLICE do
  local fields = {}
  for i = first, math.min(first + SLICE - 1, #arg.leases) do
    fields[#fields + 1] = 'n:' .. arg.leases[i]
    fields[#fields + 1] = 'w:' .. arg.leases[i]
  end
  local raw = redis.call('HMGET', LEASES, unpack(fields))
  for i = 1, #raw, 2 do leases[#leases + 1] = {tonumber(raw[i] or 0), tonumber(raw[i + 1] or 0)} end
end
for i, name in ipairs(arg.breakers) do
  local raw = redis.call('HMGET', PREFIX .. 'breaker:' .. name, 'state', 'until', 'probe')
  local breaker = {state = raw[1] or 'closed', ['until'] = raw[2], probe = raw[3]}
  breakers[i] = {breaker.state, breaker_wait(breaker)}
end
for i, take in ipairs(arg.buckets) do buckets[i] = bucket_wait(take, 1) end
for i, account in ipairs(arg.accounts) do
  accounts[i] = {read_account(account_key(account[1], account[2]))}
end
return cmsgpack.pack({leases, breakers, buckets, accounts})
