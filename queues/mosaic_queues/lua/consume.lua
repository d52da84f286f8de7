-- A mailbox: commits what was made of the chunks so far, and reads the next ones.
-- arg: holder, id, fence
--      commit   bool: ARGV[2] is the new state, `cursors` the new {stream = entry id}, `after` where to read on; otherwise cursors
--               and state are answered, and it reads on from those cursors; `seen` {stream = {ids}}: entries that must be there still
--      flushes  as in publish, their data from ARGV[3] on: what came out of the chunks
--      grow     false, or {join, groups {{queue, {ids}}}, {ids}, first, fence}: new calls, whose items' envelopes follow; join: false,
--               or what counts them; first: nothing grew before; their claims count from `fence`
--      cut      {ids}: calls that are not needed any more, whether they wait or run
--      decided  '', or what a mixture came to
--      undo     false, or {join, stream, first, {ids}, {readers}}: calls of items that were taken back are as if they had never been
--      sources  {stream}, limit: how many entries of each to read
--      need     how many chunks wake it, when it goes idle because there is nothing to read
--      due      false, or when (ms) it is woken in any case
--      seal     false, or {join, total, {close group}}: every item has its call; ends the mailbox
-- Returns {msgpack {state, cursors, ready, cut {{id, fence, holder}}}, state, entries of the first source, ...}; state: stale, read, idle, sealed, gap;
-- gap: what it read or put out last is not in the streams any more, for the server lost it; nothing is committed.
local OPEN = 1099511627776   -- a join that still grows counts from minus this
local call, readers = call_and_readers(arg.id, arg.flushes)
if not is_held(call, arg.fence) then return {cmsgpack.pack({'stale', {}, {}}), ''} end
local ready, groups, events, ended = {}, {}, {}, {}
local cursors, after, state = arg.cursors, arg.after, ''

-- Ends calls that nobody needs any more, and their shadows. What holds one of them is told by the caller.
-- Returns {{id, fence, holder}}; of one that is not claimed the fence of its next claim, and no holder.
local function cut(ids, events)
  local gone, shadows, ended = {}, {}, {}
  for i, live in ipairs(states(ids)) do
    if live then
      local is_claimed = live[STATE] == CLAIMED
      gone[#gone + 1] = ids[i]
      if live[HEDGED] then shadows[#shadows + 1] = ids[i] .. SHADOW end
      ended[#ended + 1] = {ids[i], live[FENCE] + (is_claimed and 0 or 1), is_claimed and live[HOLDER] or ''}
      redis.call('HDEL', OUT, ids[i] .. '>')
    end
  end
  in_slices('HDEL', CALLS, gone)
  if #gone > 0 then events[#events + 1] = {'cut', gone, arg.holder} end
  for _, shadow in ipairs(drop_shadows(shadows)) do ended[#ended + 1] = shadow end
  return ended
end

-- Whether an entry that this session has read is gone. Another attempt may say something else in its place.
local function has_lost()
  for stream, entries in pairs(arg.seen) do
    for _, entry in ipairs(entries) do
      if #redis.call('XRANGE', stream_key(stream), entry, entry) == 0 then return true end
    end
  end
  return false
end
if arg.commit then
  local first = not has_lost() and append_flushes(arg.id, arg.fence, arg.flushes, 3, ready, readers)
  if not first then return {cmsgpack.pack({'gap', {}, {}}), ''} end
  -- Calls that grow or are undone change the state. Where it is there already, this is sent again because its answer was lost,
  -- and those calls have gone on.
  local is_new = not (arg.grow or arg.undo or #arg.cut > 0 or arg.decided ~= '') or redis.call('HGET', BOXES, 'm:' .. arg.id) ~= ARGV[2]
  local added = redis.call('HSET', BOXES, 'c:' .. arg.id, cmsgpack.pack(cursors), 'm:' .. arg.id, ARGV[2])
  if added > 0 then redis.call('PEXPIRE', BOXES, redis.call('PTTL', RUN)) end   -- may be the first that is kept there
  if call[AWAITED] == 1 then
    for _, stream in ipairs(arg.sources) do
      redis.call('XADD', stream_key(stream .. '!'), 'MAXLEN', 1, '*', 'read', arg.id)
      redis.call('PEXPIRE', stream_key(stream .. '!'), 60000)
    end
  end
  if call[AWAITED] or call[FAILURES] > 0 or call[LOSSES] > 0 then   -- each batch has its attempts
    call[AWAITED], call[DUE], call[FAILURES], call[LOSSES] = nil, nil, 0, 0
    redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call))
  end
  if is_new and arg.grow then
    local join, grown, ids, is_first, fence = unpack(arg.grow)
    if join and is_first then redis.call('HSET', RUN, 'j:' .. join, -OPEN) end
    local items = {}
    for i, id in ipairs(ids) do
      items[#items + 1] = 'i:' .. id
      items[#items + 1] = ARGV[first + i - 1]
    end
    in_slices('HSET', BOXES, items)
    for i, group in ipairs(grown) do groups[i] = {group[1], group[2], {}, fence} end
  end
  if is_new and #arg.cut > 0 then ended = cut(arg.cut, events) end
  if is_new and arg.decided ~= '' then events[#events + 1] = {'decided', {arg.id}, arg.holder, arg.decided} end
  if is_new and arg.undo then
    local join, stream, first_item, ids, readers = unpack(arg.undo)
    local done = 0
    for _, id in ipairs(ids) do
      done = done + redis.call('HDEL', OUT, id)
      redis.call('HDEL', CALLS, id)
    end
    redis.call('HINCRBY', RUN, 'j:' .. join, -done)
    if redis.call('EXISTS', stream_key(stream)) == 1 then
      append(stream, {'retract', arg.id, arg.fence, 0, first_item, 0}, '')
      ring(readers, 1, false, ready)
    end
  end
else
  cursors, state = kept_of(arg.id)
  after = cursors
end
if arg.seal then
  local join, total, close = unpack(arg.seal)
  if total == 0 or redis.call('HINCRBY', RUN, 'j:' .. join, OPEN - total) == 0 then groups[#groups + 1] = close end
end
if #groups > 0 or #events > 0 or arg.seal then
  if arg.seal or (arg.grow and arg.grow[1]) then events[#events + 1] = {'expanded', arg.id, arg.seal and arg.seal[2] or arg.total, arg.holder} end
  local _, released = release(groups, events)
  for _, group in ipairs(released) do ready[#ready + 1] = group end
end
if arg.seal then
  redis.call('HDEL', CALLS, arg.id)   -- last: an emptied hash would lose its expiry
  return {cmsgpack.pack({'sealed', cursors, ready, ended}), ''}
end
local entries, count = read_on(arg.sources, after, arg.limit)
local outcome = 'read'
if count == 0 and arg.need then
  outcome = 'idle'
  local now = record({{'idle', {arg.id}, arg.holder}})
  call[STATE], call[AT], call[HOLDER], call[NEED] = IDLE, now, '', arg.need
  if arg.due then call[AWAITED], call[DUE] = 0, arg.due end
  redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call))
end
return {cmsgpack.pack({outcome, cursors, ready, ended}), state, unpack(entries)}
