-- How limits stand.
-- arg: leases, breakers: names; buckets {{name, 1, rate, size}}; accounts {{account, is_daily}}
-- Returns {{number, weight}, ...}, {{state, wait_ms}, ...}, {wait_ms, ...}, {{spent, reserved}, ...}.
tidy()
local leases, breakers, buckets, accounts = {}, {}, {}, {}
for i, name in ipairs(arg.leases) do
  local raw = redis.call('HMGET', LEASES, 'n:' .. name, 'w:' .. name)
  leases[i] = {tonumber(raw[1] or 0), tonumber(raw[2] or 0)}
end
for i, name in ipairs(arg.breakers) do
  local breaker = read_breaker(name)
  breakers[i] = {breaker.state, breaker_wait(breaker)}
end
for i, take in ipairs(arg.buckets) do buckets[i] = bucket_wait(take, 1) end
for i, account in ipairs(arg.accounts) do
  accounts[i] = {read_account(account_key(account[1], account[2]))}
end
return cmsgpack.pack({leases, breakers, buckets, accounts})
