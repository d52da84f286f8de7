-- Records finished calls, releases what they made ready, and claims calls for the same process.
-- arg: holder
--      done    {{id, fence, kind, {joins}, {marks}, {flushes}}}   kind: the event to record, done or skipped; the envelope of the
--              first is ARGV[2], and so on; marks {{stream, kind, offset, count, {readers}, follows}}: chunks without data, of
--              streams that these calls end or add an item to; one that follows on the last chunk, and does not since the server
--              lost what was published, has its call run again instead: the next attempt publishes what is missing; flushes: the
--              last chunks before the marks, as in publish.lua, with their data behind the fields; where one does not follow on
--              what is there, the call is left as it is
--      fields  {{place in done, name, {joins}}}   parts of outputs that are waited for; their envelopes follow those of done
--      joins   {{join, size, {{queue, {ids}}} | false}}   what each raised join releases; false: the run ends
--      claim   {ids}   calls of the message to claim now
--      notes   {event}   what the calls used: recorded also for stale calls, for it was spent, but once for each claim; an event
--              has the id of its call in its second place, the fence of its claim in its eighth
--      read    {ids}   finished calls whose envelopes the claimed calls need
--      open    {{mailbox, {streams}}}, limit   of `claim`: what they would read first comes with their claims
--      keep, serves   how many newly ready calls to claim, on which queues
--      fences  whether to note by which claim each of `done` was held
--      plan    content hash of the plan that the run has to have, or an empty text
-- Returns {nothing} where the run has another plan, otherwise a list: first {stale = {ids}, claimed = {{id, fence, failures, losses}},
-- ready = {{queue, {ids}}}, closed = bool, dropped = {{id, fence, holder}}: shadows of the finished calls, waited = {{id, ms}}: how
-- long calls of `claim` were ready, gaps = {ids}: calls whose flushes do not follow} as msgpack, then an envelope or nil for each id
-- of `read`, then {cursors as msgpack, state, entries of the first stream, ...} or nil for each of `open`.
if arg.plan ~= '' and redis.call('HGET', RUN, 'plan') ~= arg.plan then return {cmsgpack.pack({})} end
local events, stale, counts, woken = {}, {}, {}, {}
local ids, marks = {}, {}
for i, item in ipairs(arg.done) do ids[i] = item[1] end
local found = #ids > 0 and states(ids) or {}
local gone, outputs, marks_of, is_done, again, shadows, gaps = {}, {}, {}, {}, {}, {}, {}

-- Whether all that a call has published is there.
local function are_whole(its_marks)
  for _, mark in ipairs(its_marks or {}) do
    if mark[6] and position_after(last_header(mark[1])) ~= mark[3] then return false end
  end
  return true
end

local chunk = #arg.done + #(arg.fields or {}) + 2
for i, item in ipairs(arg.done) do
  local id, fence, kind, joins = unpack(item)
  local is_ours = is_held(found[i], fence)
  local first = chunk
  for _, flush in ipairs(item[6]) do chunk = chunk + #flush[4] end
  if is_ours and not append_flushes(id, fence, item[6], first, woken) then
    gaps[#gaps + 1] = id
  elseif is_ours and are_whole(item[5]) then
    gone[#gone + 1] = id
    if found[i][HEDGED] then shadows[#shadows + 1] = id .. SHADOW end
    local name = string.match(id, '^([%d@]+)%.[cm]$') or id   -- a close or mailbox writes its node's output
    outputs[#outputs + 1] = name
    outputs[#outputs + 1] = ARGV[i + 1]
    if arg.fences and (fence ~= 1 or name ~= id) then
      outputs[#outputs + 1] = name .. '!'
      outputs[#outputs + 1] = string.format('%s#%.0f', id, fence)
    end
    if not marks[kind] then
      marks[kind] = {}
      events[#events + 1] = {kind, marks[kind], arg.holder}
    end
    table.insert(marks[kind], id)
    for _, join in ipairs(joins) do counts[join] = (counts[join] or 0) + 1 end
    for _, mark in ipairs(item[5] or {}) do marks_of[#marks_of + 1] = {id, fence, mark} end
    is_done[i] = true
  else
    stale[#stale + 1] = id
    if is_ours then again[#again + 1] = {id, found[i]} end
  end
end
in_slices('HSET', OUT, outputs)
local dropped = drop_shadows(shadows)
for i, field in ipairs(arg.fields or {}) do
  if is_done[field[1]] then announce(field[2], ARGV[#arg.done + i + 1], field[3], counts) end
end

if #arg.notes > 0 and redis.call('EXISTS', RUN) == 1 then
  for _, note in ipairs(arg.notes) do
    if redis.call('HSETNX', RUN, 'u:' .. note[2] .. ':' .. note[8], 1) == 1 then events[#events + 1] = note end
  end
end

for _, mark in ipairs(marks_of) do
  local id, fence, chunk = mark[1], mark[2], mark[3]
  append(chunk[1], {chunk[2], id, fence, 0, chunk[3], chunk[4]}, '')
  ring(chunk[5], chunk[4], chunk[2] == 'end', woken)
end
local groups, ends = raise(arg.joins, counts)
if ends then
  close_run('done', '', events)
  return {cmsgpack.pack({stale, {}, {}, true, dropped})}
end

local claimed, taken, waited = {}, {}, {}
if #arg.claim > 0 then
  local ids_taken = {}
  for i, call in ipairs(states(arg.claim)) do
    if call and call[STATE] == READY then   -- a delayed one waits for its time, whoever brings a message
      local id = arg.claim[i]
      call[STATE], call[FENCE], call[HOLDER] = CLAIMED, call[FENCE] + 1, arg.holder
      claimed[#claimed + 1] = {id, call[FENCE], call[FAILURES], call[LOSSES]}
      waited[#waited + 1] = {id, call[AT]}
      taken[#taken + 1] = {id, call}
      ids_taken[#ids_taken + 1] = id
    end
  end
  if #taken > 0 then events[#events + 1] = {'claimed', ids_taken, arg.holder} end
end
for _, pair in ipairs(again) do events[#events + 1] = {'released', {pair[1]}, arg.holder} end
local kept, ready, now = release(groups, events, taken)
for _, pair in ipairs(again) do
  local call = pair[2]
  call[STATE], call[AT], call[HOLDER] = READY, now, ''
  redis.call('HSET', CALLS, pair[1], cmsgpack.pack(call))
  ready[#ready + 1] = {call[QUEUE], {pair[1]}}
end
for _, group in ipairs(woken) do ready[#ready + 1] = group end
for _, claim in ipairs(kept) do claimed[#claimed + 1] = claim end
in_slices('HDEL', CALLS, gone)   -- last: an emptied hash would lose its expiry
for _, pair in ipairs(waited) do pair[2] = now - pair[2] end
local answer = {cmsgpack.pack({stale, claimed, ready, false, dropped, waited, gaps})}
if #claimed == 0 then return answer end
if #arg.read > 0 then
  for i, envelope in ipairs(redis.call('HMGET', OUT, unpack(arg.read))) do answer[i + 1] = envelope end
end
local is_claimed = {}
for _, claim in ipairs(claimed) do is_claimed[claim[1]] = true end
for i, box in ipairs(arg.open) do
  local place = #arg.read + 1 + i
  answer[place] = false
  if is_claimed[box[1]] then
    local cursors, state = kept_of(box[1])
    answer[place] = {cmsgpack.pack(cursors), state, unpack((read_on(box[2], cursors, arg.limit)))}
  end
end
return answer
