-- What transitions on streams share; put after common.lua.

-- Appends a chunk. The first one of a stream enters it among the run's streams, and it lives as long as the run.
-- Returns the server's time in milliseconds.
local function append(stream, header, data)
  local key = stream_key(stream)
  local is_new = redis.call('HSETNX', BOXES, 's:' .. stream, 1) == 1
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

-- Tells mailboxes that `count` chunks came, or the last one; who has enough to read is ready and enters `ready` {{queue, {ids}}}.
local function ring(ids, count, is_end, ready)
  if #ids == 0 then return end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for i, call in ipairs(states(ids)) do
    if call and call[STATE] == IDLE then
      if is_end or count >= call[NEED] then
        call[STATE], call[AT] = READY, now
        ready[#ready + 1] = {call[QUEUE], {ids[i]}}
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
local function lag_of(stream, readers)
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
    end
  end
  return most
end

-- Appends what a call has for its streams: flushes {{stream, flush, {readers}, {{kind, offset, count}}}}, their data from ARGV[first] on.
-- A flush that is already there is not repeated. Returns the place after the last data, or nil where a chunk does not follow on.
local function append_flushes(id, fence, flushes, first, ready)
  for _, flush in ipairs(flushes) do
    local stream, number, readers, chunks = unpack(flush)
    local last = last_header(stream)
    if last and last[3] == fence and last[4] >= number then
      first = first + #chunks
    else
      local position = last and (last[1] == 'retract' and last[5] or last[5] + last[6]) or 0
      local came = 0
      for _, chunk in ipairs(chunks) do
        local kind, offset, count = unpack(chunk)
        if kind == 'retract' then
          position = math.min(position, offset)
        elseif offset ~= position then
          return nil
        else
          position = position + count
        end
        append(stream, {kind, id, fence, number, offset, count}, ARGV[first])
        first, came = first + 1, came + math.max(count, 1)
      end
      ring(readers, came, false, ready)
    end
  end
  return first
end
