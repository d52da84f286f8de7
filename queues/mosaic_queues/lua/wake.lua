-- Puts calls that wait for a retry, or whose message was lost, back at the head of the outbox's clock. Shadows are dropped.
-- arg: calls {ids}, now_ms, early {ids}   early: of calls, delayed ones that are woken before their time
-- Returns msgpack {{queue, {ids}}} of the calls to publish.
local queues, order, writes, shadows = {}, {}, {}, {}
local found, is_early = states(arg.calls), {}
for _, id in ipairs(arg.early) do is_early[id] = true end
for i, id in ipairs(arg.calls) do
  local call = found[i]
  if call and is_shadow(id) and call[STATE] ~= CLAIMED then
    shadows[#shadows + 1] = id
  elseif call and call[STATE] ~= CLAIMED and (call[AT] <= arg.now_ms or (call[STATE] == DELAYED and is_early[id])) then
    call[STATE], call[AT] = READY, arg.now_ms
    writes[#writes + 1] = id
    writes[#writes + 1] = cmsgpack.pack(call)
    if not queues[call[QUEUE]] then
      queues[call[QUEUE]] = {}
      order[#order + 1] = call[QUEUE]
    end
    table.insert(queues[call[QUEUE]], id)
  end
end
in_slices('HSET', CALLS, writes)
drop_shadows(shadows)
local ready, events = {}, {}
for i, queue in ipairs(order) do
  ready[i] = {queue, queues[queue]}
  events[i] = {'ready', queues[queue], queue}
end
if #events > 0 then record(events) end
return cmsgpack.pack(ready)
