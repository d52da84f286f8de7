-- Says where calls that are ready go; what a process learns of it that claims one stands beside the outputs, as `<call>>`.
-- arg: routes {{id, queue, target, reason, wait_ms}}   wait_ms: they go nowhere before so long, 0: at once; what is kept of each
--      follows as an argument of its own
-- A call that goes nowhere again, while what is kept of it stays the same, is not told of: it may wait for days.
-- Returns msgpack {{id, fence}} of those that go at once and that nobody has claimed, with the number of the claim that comes next.
local ids = {}
for i, route in ipairs(arg.routes) do ids[i] = route[1] end
local found, places, events = states(ids), {}, {}
for i, route in ipairs(arg.routes) do
  if found[i] and found[i][STATE] == READY then
    places[#places + 1] = i
    if route[5] == 0 or redis.call('HGET', OUT, route[1] .. '>') ~= ARGV[i + 1] then
      events[#events + 1] = {'routed', route[1], route[3], route[4], route[5], found[i][FENCE] + 1}
    end
  end
end
if #places == 0 then return cmsgpack.pack({}) end
local time = redis.call('TIME')
local now = #events > 0 and record(events) or time[1] * 1000 + math.floor(time[2] / 1000)
local writes, kept, sent = {}, {}, {}
for _, i in ipairs(places) do
  local route, call = arg.routes[i], found[i]
  call[QUEUE], call[AT] = route[2], now
  if route[5] > 0 then
    call[STATE], call[AT] = DELAYED, now + route[5]
  else
    sent[#sent + 1] = {route[1], call[FENCE] + 1}
  end
  writes[#writes + 1] = route[1]
  writes[#writes + 1] = cmsgpack.pack(call)
  kept[#kept + 1] = route[1] .. '>'
  kept[#kept + 1] = ARGV[i + 1]
end
in_slices('HSET', CALLS, writes)
in_slices('HSET', OUT, kept)
return cmsgpack.pack(sent)
