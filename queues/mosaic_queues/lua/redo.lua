-- Opens a new epoch of a run: some nodes run again, the rest is kept. Nothing of two epochs meets: calls of these nodes that
-- run now are refused when they end, their streams begin again, and claims of the new epoch count above all earlier ones.
-- arg: claim   false, or {id, fence}: the producer that corrects what it announced
--      over    whether the caller took the run to be over (nil: either); otherwise nothing happens
--      nodes   {number}
--      joins   {{join, size, {names of outputs that it waits for and that are kept}, {groups of the nodes}}}
--      roots   {groups} that wait for nothing
--      boxes   {{mailbox, {streams}}}
--      fields  {name}: parts of outputs that are corrected; their envelopes from ARGV[2] on
--      untold  of a run that is over: nobody who watches many runs was told so yet
--      holder, keep_ms
-- Returns {epoch, ready {{queue, {ids}}}}; epoch 0 where the claim is stale or the run is gone, -1 where it is over or is not.
if redis.call('EXISTS', RUN) == 0 then return cmsgpack.pack({0, {}}) end
if arg.claim and not is_held(states({arg.claim[1]})[1], arg.claim[2]) then return cmsgpack.pack({0, {}}) end
local was, tenant, name = unpack(redis.call('HMGET', RUN, 'status', 'tenant', 'name'))
local is_over = was ~= 'running'
if not arg.claim and is_over ~= arg.over then return cmsgpack.pack({-1, {}}) end
local again = {}
for _, number in ipairs(arg.nodes) do again[tostring(number)] = true end

-- Deletes what a hash holds of these nodes; `pattern` finds the number in a field's name.
local function forget(key, pattern)
  local gone = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if again[string.match(field, pattern)] then gone[#gone + 1] = field end
  end
  in_slices('HDEL', key, gone)
end
local epoch = redis.call('HINCRBY', RUN, 'epoch', 1)
base = epoch * EPOCH
forget(OUT, '^(%d+)')
forget(CALLS, '^(%d+)')
redis.call('HSET', CALLS, 'epoch', epoch)
forget(RUN, '^j:n(%d+)$')
forget(BOXES, '^[cmi]:(%d+)')
local begins, streams = {}, {}
for _, field in ipairs(redis.call('HKEYS', BOXES)) do
  local stream, number = string.match(field, '^s:((%d+).*)$')
  if stream then streams[#streams + 1] = stream end
  if again[number] then
    local header = cmsgpack.pack({'retract', number, base, 0, 0, 0})
    begins[stream] = redis.call('XADD', stream_key(stream), '*', 'c', header, 'd', '')
    redis.call('HSET', BOXES, 'b:' .. stream, begins[stream])
  end
end
for _, box in ipairs(arg.boxes) do
  local cursors, any = {}, false
  for _, stream in ipairs(box[2]) do
    local begin = begins[stream] or redis.call('HGET', BOXES, 'b:' .. stream)
    if begin then cursors[stream], any = begin, true end
  end
  if any then redis.call('HSET', BOXES, 'c:' .. box[1], cmsgpack.pack(cursors)) end
end
for i, name in ipairs(arg.fields) do redis.call('HSET', OUT, name, ARGV[i + 1]) end

local groups = arg.roots
for _, join in ipairs(arg.joins) do
  local name, size, kept, members = unpack(join)
  local closed = 0
  for _, output in ipairs(kept) do closed = closed + redis.call('HEXISTS', OUT, output) end
  if closed > 0 then redis.call('HSET', RUN, 'j:' .. name, closed) else redis.call('HDEL', RUN, 'j:' .. name) end
  if closed == size then
    for _, group in ipairs(members) do groups[#groups + 1] = group end
  end
end
local events = {{'redo', arg.nodes, arg.holder, epoch}}
redis.call('HSET', RUN, 'status', 'running', 'error', '')
redis.call('HDEL', RUN, 'ended_ms')
redis.call('DEL', END)
local _, ready, now = release(groups, events)
if is_over then
  -- Who ran again before and is not marked was told then; who is marked stays so until an end of it is told.
  local is_told = not arg.untold or redis.call('HEXISTS', RUN, 'reopened_ms') > redis.call('HEXISTS', RUN, 'untold')
  if is_told then redis.call('HDEL', RUN, 'untold') else redis.call('HSET', RUN, 'untold', '1') end
  redis.call('HSET', RUN, 'reopened_ms', now)
end
for _, key in ipairs({RUN, CALLS, OUT, EVENTS, BLOBS, BOXES}) do redis.call('PEXPIRE', key, arg.keep_ms) end
for _, stream in ipairs(streams) do redis.call('PEXPIRE', stream_key(stream), arg.keep_ms) end
if not arg.claim then tell(tenant, name, was, 'running', arg.keep_ms) end
return cmsgpack.pack({epoch, ready})
