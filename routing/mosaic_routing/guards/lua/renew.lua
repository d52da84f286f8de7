-- Prolongs permits, also lapsed ones, whose calls run after all.
-- arg: permits
-- Returns those that are unknown.
tidy()
local missing = {}
for _, permit in ipairs(arg.permits) do
  local record, is_lapsed = find(permit)
  if record then
    if is_lapsed then
      hold(record, 1)
      redis.call('ZREM', LAPSED, permit)
    end
    redis.call('ZADD', PERMITS, now + arg.expiry_ms, permit)
  else
    missing[#missing + 1] = permit
  end
end
for _, key in ipairs({PERMITS, LEASES}) do redis.call('PEXPIRE', key, 2 * DAY) end
return cmsgpack.pack(missing)
