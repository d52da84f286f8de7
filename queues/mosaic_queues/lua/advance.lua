-- Records finished calls, releases what they made ready, and claims calls for the same process.
-- arg: holder
--      done    {{id, fence, kind, {joins}}}   kind: the event to record, done or skipped; the envelope of the
--              first is ARGV[2], and so on
--      joins   {{join, size, {{queue, {ids}}} | false}}   what each raised join releases; false: the run ends
--      claim   {ids}   calls of the message to claim now
--      notes   {event}   what the calls used: recorded as it is, also for stale calls, for it was spent
--      read    {ids}   finished calls whose envelopes the claimed calls need
--      keep, serves   how many newly ready calls to claim, on which queues
-- Returns a list: first {stale = {ids}, claimed = {{id, fence, failures, losses}}, ready = {{queue, {ids}}}, closed = bool} as msgpack, then an
-- envelope or nil for each id of `read`.
local events, stale, counts = {}, {}, {}
local ids, marks = {}, {}
for i, item in ipairs(arg.done) do ids[i] = item[1] end
local found = #ids > 0 and states(ids) or {}
local gone, outputs = {}, {}
for i, item in ipairs(arg.done) do
  local id, fence, kind, joins = unpack(item)
  local call = found[i]
  if call and call[STATE] == CLAIMED and call[FENCE] == fence then
    gone[#gone + 1] = id
    outputs[#outputs + 1] = string.match(id, '^(%d+)%.c$') or id   -- a close writes its node's output
    outputs[#outputs + 1] = ARGV[i + 1]
    if not marks[kind] then
      marks[kind] = {}
      events[#events + 1] = {kind, marks[kind], arg.holder}
    end
    table.insert(marks[kind], id)
    for _, join in ipairs(joins) do counts[join] = (counts[join] or 0) + 1 end
  else
    stale[#stale + 1] = id
  end
end
in_slices('HSET', OUT, outputs)

if #arg.notes > 0 and redis.call('EXISTS', RUN) == 1 then
  for _, note in ipairs(arg.notes) do events[#events + 1] = note end
end

local groups, ends = {}, false
for _, join in ipairs(arg.joins) do
  local name, size, members = join[1], join[2], join[3]
  local count = counts[name]
  if count then
    local total = count
    if size ~= count then total = redis.call('HINCRBY', RUN, 'j:' .. name, count) end
    if total == size then
      if members then
        for _, group in ipairs(members) do groups[#groups + 1] = group end
      else
        ends = true
      end
    end
  end
end
if ends then
  close_run('done', '', events)
  return {cmsgpack.pack({stale, {}, {}, true})}
end

local wanted, writes, taken = arg.claim, {}, {}
local claimed = {}
if #wanted > 0 then
  for i, call in ipairs(states(wanted)) do
    if call and call[STATE] == READY then   -- a delayed one waits for its time, whoever brings a message
      call[STATE], call[FENCE], call[HOLDER] = CLAIMED, call[FENCE] + 1, arg.holder
      claimed[#claimed + 1] = {wanted[i], call[FENCE], call[FAILURES], call[LOSSES]}
      taken[#taken + 1] = wanted[i]
      writes[#writes + 1] = wanted[i]
      writes[#writes + 1] = cmsgpack.pack(call)
    end
  end
  if #taken > 0 then events[#events + 1] = {'claimed', taken, arg.holder} end
  in_slices('HSET', CALLS, writes)
end
local kept, ready = release(groups, events)
for _, claim in ipairs(kept) do claimed[#claimed + 1] = claim end
in_slices('HDEL', CALLS, gone)   -- last: an emptied hash would lose its expiry
local answer = {cmsgpack.pack({stale, claimed, ready, false})}
if #arg.read > 0 and #claimed > 0 then
  for i, envelope in ipairs(redis.call('HMGET', OUT, unpack(arg.read))) do answer[i + 1] = envelope end
end
return answer
