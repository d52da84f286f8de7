-- What transitions on streams share; put after common.lua.

-- Appends a chunk. The first one of a stream enters it among the run's streams, and it lives as long as the run.
-- Returns the server's time in milliseconds.
-- is_first: true or false where the caller knows whether it is the first, nil where it does not.
local function append(stream, header, data, is_first)
  local key = stream_key(stream)
  local is_new = is_first ~= false and redis.call('HSETNX', BOXES, 's:' .. stream, 1) == 1
  local id = redis.call('XADD', key, '*', 'c', cmsgpack.pack(header), 'd', data)
  if is_new then
    local left = redis.call('PTTL', RUN)
    redis.call('PEXPIRE', key, left)
    redis.call('PEXPIRE', BOXES, left)
  end
  return tonumber(string.match(id, '^%d+'))
end

-- The header of the last chunk of a stream, or nil.
local function last_header(stream)
  local last = redis.call('XREVRANGE', stream_key(stream), '+', '-', 'COUNT', 1)[1]
  return last and cmsgpack.unpack(last[2][2])
end

-- Where the next chunk of a stream belongs, after its last one.
local function position_after(last)
  return last and (last[1] == 'retract' and last[5] or last[5] + last[6]) or 0
end

-- Puts the message of a call that is ready into its queue, where the caller gave one (arg.letters). False: the caller sends it.
local function post(id, call)
  local letter = arg.letters and arg.letters[id]
  if not letter or letter[1] ~= call[QUEUE] then return false end
  return type(redis.pcall('LPUSH', letter[2], letter[3])) == 'number'   -- what is refused must not undo a part of a transition
end

-- Tells mailboxes that `count` chunks came, or the last one; who has enough to read is ready and enters `ready` {{queue, {ids}}},
-- if its message is not sent from here.
-- found: their states, where the caller has looked already
local function ring(ids, count, is_end, ready, found)
  if #ids == 0 then return end
  for i, call in ipairs(found or states(ids)) do
    if call and call[STATE] == IDLE then
      if is_end or count >= call[NEED] then
        local time = redis.call('TIME')
        call[STATE], call[AT] = READY, time[1] * 1000 + math.floor(time[2] / 1000)
        if not post(ids[i], call) then ready[#ready + 1] = {call[QUEUE], {ids[i]}} end
      else
        call[NEED] = call[NEED] - count
      end
      redis.call('HSET', CALLS, ids[i], cmsgpack.pack(call))
    end
  end
end

-- Keeps a part of an output that calls wait for, once, and counts it for their joins.
local function announce(name, data, joins, counts)
  if redis.call('HSETNX', OUT, name, data) == 1 then
    for _, join in ipairs(joins) do counts[join] = (counts[join] or 0) + 1 end
  end
end

-- How far the slowest of the readers that run is behind a stream: items or characters.
-- wait: they tell of their next commit, in the stream <stream>!.
local function lag_of(stream, readers, wait)
  local last, most = last_header(stream), 0
  if not last or #readers == 0 then return 0 end
  for i, call in ipairs(states(readers)) do
    if call and call[STATE] == CLAIMED then
      local held = redis.call('HGET', BOXES, 'c:' .. readers[i])
      local cursor, read = held and cmsgpack.unpack(held)[stream], 0
      local entry = cursor and redis.call('XREVRANGE', stream_key(stream), cursor, '-', 'COUNT', 1)[1]
      if entry then
        local header = cmsgpack.unpack(entry[2][2])
        read = header[5] + header[6]
      end
      most = math.max(most, last[5] + last[6] - read)
      if wait then
        call[NEED], call[AWAITED] = call[NEED] or 1, 1
        redis.call('HSET', CALLS, readers[i], cmsgpack.pack(call))
      end
    end
  end
  return most
end

-- Appends what a call has for its streams: flushes {{stream, flush, {readers}, {{kind, offset, count}}}}, their data from ARGV[first] on.
-- A flush that is already there is not repeated. Returns the place after the last data, or nil where a chunk does not follow on.
-- found: the states of the first flush's readers.
local function append_flushes(id, fence, flushes, first, ready, found)
  for place, flush in ipairs(flushes) do
    local stream, number, readers, chunks = unpack(flush)
    local last = last_header(stream)
    if last and last[3] == fence and last[4] >= number then
      first = first + #chunks
    else
      local position = position_after(last)
      local came = 0
      for _, chunk in ipairs(chunks) do
        local kind, offset, count = unpack(chunk)
        if offset > position or (kind ~= 'retract' and offset < position) then return nil end
        position = offset + count
        append(stream, {kind, id, fence, number, offset, count}, ARGV[first], last == nil)
        first, came = first + 1, came + math.max(count, 1)
      end
      ring(readers, came, false, ready, place == 1 and found or nil)
    end
  end
  return first
end

-- The states of a call and of the readers of its first flush, in one trip: the call, {readers}.
local function call_and_readers(id, flushes)
  local ids = {id}
  for _, reader in ipairs(flushes[1] and flushes[1][3] or {}) do ids[#ids + 1] = reader end
  local found = states(ids)
  return table.remove(found, 1), found
end

-- Cursors (a table) and state of a mailbox, as its last commit left them.
local function kept_of(id)
  local held = redis.call('HMGET', BOXES, 'c:' .. id, 'm:' .. id)
  return held[1] and cmsgpack.unpack(held[1]) or {}, held[2] or ''
end

-- The entries of streams behind {stream = entry id}, at most `limit` of each: {entries}, their number.
local function read_on(streams, after, limit)
  local found, count = {}, 0
  for i, stream in ipairs(streams) do
    found[i] = redis.call('XRANGE', stream_key(stream), '(' .. (after[stream] or '0-0'), '+', 'COUNT', limit)
    count = count + #found[i]
  end
  return found, count
end
