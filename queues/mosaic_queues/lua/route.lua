-- Says where calls that are ready go; what a process learns of it that claims one stands beside the outputs, as `<call>>`.
-- arg: routes {{id, queue, target, reason, wait_ms}}   wait_ms: they go nowhere before so long, 0: at once; what is kept of each
--      follows as an argument of its own
-- Returns msgpack {ids} of those that go at once and that nobody has claimed.
local ids = {}
for i, route in ipairs(arg.routes) do ids[i] = route[1] end
local found, events = states(ids), {}
for i, route in ipairs(arg.routes) do
  if found[i] and found[i][STATE] == READY then
    events[#events + 1] = {'routed', route[1], route[3], route[4], route[5]}
  end
end
if #events == 0 then return cmsgpack.pack({}) end
local now = record(events)
local writes, kept, sent = {}, {}, {}
for i, route in ipairs(arg.routes) do
  local call = found[i]
  if call and call[STATE] == READY then
    call[QUEUE], call[AT] = route[2], now
    if route[5] > 0 then
      call[STATE], call[AT] = DELAYED, now + route[5]
    else
      sent[#sent + 1] = route[1]
    end
    writes[#writes + 1] = route[1]
    writes[#writes + 1] = cmsgpack.pack(call)
    kept[#kept + 1] = route[1] .. '>'
    kept[#kept + 1] = ARGV[i + 1]
  end
end
in_slices('HSET', CALLS, writes)
in_slices('HSET', OUT, kept)
return cmsgpack.pack(sent)
