-- Puts claimed calls back: a process hands back what it cannot start soon, or the sweeper takes back what a dead
-- process held. Shadows among them are dropped.
-- arg: calls {{id, fence}}, kind (the event: released or lost), loss (1 counts a lost process), holder
-- Returns msgpack {{queue, {ids}}} of the calls that are ready again.
local ids = {}
for i, pair in ipairs(arg.calls) do ids[i] = pair[1] end
local again, shadows, queues, order = {}, {}, {}, {}
local found = states(ids)
for i, pair in ipairs(arg.calls) do
  local call = found[i]
  if call and call[STATE] == CLAIMED and call[FENCE] == pair[2] then
    again[#again + 1] = pair[1]
    if is_shadow(pair[1]) then
      shadows[#shadows + 1] = pair[1]
    elseif not queues[call[QUEUE]] then
      queues[call[QUEUE]] = {}
      order[#order + 1] = call[QUEUE]
    end
    if not is_shadow(pair[1]) then table.insert(queues[call[QUEUE]], pair[1]) end
  end
end
if #again == 0 then return cmsgpack.pack({}) end
local now = record({{arg.kind, again, arg.holder}})
local writes, ready = {}, {}
for i, pair in ipairs(arg.calls) do
  local call = found[i]
  if is_held(call, pair[2]) and not is_shadow(pair[1]) then
    call[STATE], call[LOSSES], call[AT], call[HOLDER] = READY, call[LOSSES] + arg.loss, now, ''
    writes[#writes + 1] = pair[1]
    writes[#writes + 1] = cmsgpack.pack(call)
  end
end
in_slices('HSET', CALLS, writes)
drop_shadows(shadows)
for _, queue in ipairs(order) do ready[#ready + 1] = {queue, queues[queue]} end
return cmsgpack.pack(ready)
