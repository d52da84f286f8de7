-- The server's time in milliseconds: machines' clocks differ, this one is everybody's.
local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
