-- Adds what a process has counted, once.
-- KEYS: the tallies, a hash; the number of the process's last batch that is in them
-- ARGV: number of this batch; how long both live (s); fields at most; then for each amount: field, the field it counts under
-- when there are too many, amount
-- Returns 1, or 0 when the batch was there already.
if redis.call('GET', KEYS[2]) == ARGV[1] then return 0 end
local left = tonumber(ARGV[3]) - redis.call('HLEN', KEYS[1])
for i = 4, #ARGV, 3 do
  local field = ARGV[i]
  if redis.call('HEXISTS', KEYS[1], field) == 0 then
    if left > 0 then left = left - 1 else field = ARGV[i + 1] end
  end
  -- What cannot be added is left out: an error here would have the rest of the batch counted again and again.
  redis.pcall('HINCRBYFLOAT', KEYS[1], field, ARGV[i + 2])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'EX', 3600)
return 1
