-- Shared by all transitions; put before each script when it is loaded.
--
-- KEYS of every transition, all in the slot of {run_id}:
--   1 run     hash   status, plan, name, created_ms, ended_ms, error, retention_ms, epoch, reopened_ms, untold, origin, tenant,
--                    j:<join> counters
--   2 calls   hash   epoch, where it is not the first; live calls: id -> msgpack {state, fence, failures, losses, queue, at_ms, holder}; at_ms: when it
--                    became ready or was claimed, or when it is due
--   3 out     hash   finished calls: id -> payload envelope
--   4 events  stream field e: msgpack list of events
--   5 blobs   hash   payloads
--   6 end     stream one entry when the run is over: what waits for the end reads this alone
--   7 boxes   hash   of runs with streams: s:<stream> -> 1 for each stream there is, b:<stream> -> the
--                    entry after which its latest epoch begins; of mailboxes: c:<call> -> cursors (msgpack
--                    stream -> entry id), m:<call> -> state; i:<call> -> envelope of the item of a grown call
-- and for each stream, in the same slot: s:<stream>, a stream of chunks, field c: msgpack {kind, call, fence, flush, offset,
-- count}, field d: their data as a payload envelope. A stream is named by its node, and for a part of its output by its path.
-- ARGV[1] is one msgpack map; payload envelopes follow as they are. A reply, where there is one, is msgpack too.
local RUN, CALLS, OUT, EVENTS, BLOBS, END, BOXES = unpack(KEYS)
local READY, DELAYED, CLAIMED, IDLE = 'r', 'd', 'c', 'i'   -- idle: a mailbox that waits for chunks
local STATE, FENCE, FAILURES, LOSSES, QUEUE, AT, HOLDER = 1, 2, 3, 4, 5, 6, 7
local NEED, AWAITED, DUE = 8, 9, 10   -- of mailboxes: chunks that wake an idle one; 1: its producer waits for its next commit; when
                                      -- an idle one is woken in any case
local HEDGED = 8             -- of others: the number of the last claim beside which the call got a shadow
local MAX_ARGS = 4000
local EPOCH = 4294967296   -- claims of an epoch count from its number times this
local MAX_EVENTS = 200000
local MAX_CHANGES = 1000

local arg = cmsgpack.unpack(ARGV[1])

-- Runs a command with any number of trailing arguments, in slices that Lua can unpack.
local function in_slices(command, key, values)
  for first = 1, #values, MAX_ARGS do
    redis.call(command, key, unpack(values, first, math.min(first + MAX_ARGS - 1, #values)))
  end
end

local base = 0   -- claims of this epoch count from here; known once `states` has looked

-- The states of the calls named in `ids`, false where a call is not alive.
local function states(ids)
  local found = {}
  for first = 1, #ids, MAX_ARGS do
    local last = math.min(first + MAX_ARGS - 1, #ids)
    local raw = redis.call('HMGET', CALLS, 'epoch', unpack(ids, first, last))
    base = (raw[1] or 0) * EPOCH
    for i = 1, last - first + 1 do
      found[first + i - 1] = raw[i + 1] and cmsgpack.unpack(raw[i + 1])
    end
  end
  return found
end

-- The shadow of a call is the same call, asked a second time elsewhere. It lives and dies apart from it, and is never made ready
-- again; once it has its answer, it takes the call over.
local SHADOW = '.~'

local function is_shadow(id)
  return string.sub(id, -2) == SHADOW
end

-- Deletes shadows that nobody needs; the caller sees to it that other calls are left, since an emptied hash would lose its expiry.
-- Returns {{id, fence, holder}} of those that were there; the fence of a claim to come and no holder, where it was not claimed.
local function drop_shadows(ids)
  local dropped = {}
  for i, shadow in ipairs(#ids > 0 and states(ids) or {}) do
    if shadow then
      local is_claimed = shadow[STATE] == CLAIMED
      dropped[#dropped + 1] = {ids[i], shadow[FENCE] + (is_claimed and 0 or 1), is_claimed and shadow[HOLDER] or ''}
      redis.call('HDEL', CALLS, ids[i])
      redis.call('HDEL', OUT, ids[i] .. '>')
    end
  end
  return dropped
end

-- The key of a stream.
local function stream_key(stream)
  return string.sub(RUN, 1, -4) .. 's:' .. stream
end

-- Whether the claim with this fence is the one that counts.
local function is_held(call, fence)
  return call and call[STATE] == CLAIMED and call[FENCE] == fence
end

-- Appends one entry and returns the server's time in milliseconds.
local function record(events)
  local id = redis.call('XADD', EVENTS, 'MAXLEN', '~', MAX_EVENTS, '*', 'e', cmsgpack.pack(events))
  return tonumber(string.match(id, '^%d+'))
end

-- Tells whoever watches the list of runs that this one is there, or has another status: one stream of all runs
-- (`changes.py`), field c: msgpack {run id, tenant, name, was, status}. It lives as long as what it tells of. Its key is in
-- another slot than the run, and a server may refuse it: that must not undo a part of a transition.
local function tell(tenant, name, was, status, keep_ms)
  local namespace, run_id = string.match(RUN, '^(.-):{(.-)}')
  local change = cmsgpack.pack({run_id, tenant or '', name, was, status})
  redis.pcall('XADD', namespace .. ':changes', 'MAXLEN', '~', MAX_CHANGES, '*', 'c', change)
  redis.pcall('PEXPIRE', namespace .. ':changes', keep_ms)
end

-- Who holds claims of the run: {{holder, {ids}}}.
local function held()
  local by_holder, found = {}, {}
  local calls = redis.call('HGETALL', CALLS)
  for i = 1, #calls, 2 do
    local call = calls[i] ~= 'epoch' and cmsgpack.unpack(calls[i + 1])
    if call and call[STATE] == CLAIMED then
      local holder = call[HOLDER]
      if not by_holder[holder] then
        by_holder[holder] = {}
        found[#found + 1] = {holder, by_holder[holder]}
      end
      table.insert(by_holder[holder], calls[i])
    end
  end
  return found
end

-- Ends the run: nothing of it is alive any more, and all of it expires.
local function close_run(status, error, events)
  local retention, tenant, name = unpack(redis.call('HMGET', RUN, 'retention_ms', 'tenant', 'name'))
  events[#events + 1] = {'closed', status, error}
  local now = record(events)
  redis.call('HSET', RUN, 'status', status, 'ended_ms', now, 'error', error)
  redis.call('DEL', CALLS)
  redis.call('XADD', END, '*', 'status', status)
  for _, key in ipairs({RUN, OUT, EVENTS, BLOBS, END, BOXES}) do
    redis.call('PEXPIRE', key, retention)
  end
  for _, field in ipairs(redis.call('HKEYS', BOXES)) do
    local stream = string.match(field, '^s:(.+)$')
    if stream then redis.call('PEXPIRE', stream_key(stream), retention) end
  end
  tell(tenant, name, 'running', status, retention)
end

-- What the counted joins release, as groups; and whether the last of them was raised.
-- joins {{join, size, {groups} | false}}, counts {join = number}
local function raise(joins, counts)
  local groups, ends = {}, false
  for _, join in ipairs(joins) do
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
  return groups, ends
end

-- Whether any of the streams has a chunk.
local function any_chunk(streams)
  for _, stream in ipairs(streams) do
    if redis.call('EXISTS', stream_key(stream)) == 1 then return true end
  end
  return false
end

-- Makes calls ready. A group is {queue, {ids}, {id = {streams}}, fence}: the third are its mailboxes, idle until there is a
-- chunk; their claims count from the fourth, or from 0.
-- The first `arg.keep` of them on queues that the caller serves are claimed for it.
-- `taken` {{id, state}} are calls that the caller claimed already.
-- Returns claimed {{id, fence, failures, losses}}, ready {{queue, {ids}}} and the time (ms); records `events` before.
local function release(groups, events, taken)
  local claimed, ready, writes, keep = {}, {}, {}, arg.keep or 0
  local serves = {}
  for _, queue in ipairs(arg.serves or {}) do serves[queue] = true end
  local kept, idle, fences = {}, {}, {}
  for _, group in ipairs(groups) do
    local queue, ids, waiting, boxes = group[1], group[2], {}, group[3] or {}
    for _, id in ipairs(ids) do
      if boxes[id] and not any_chunk(boxes[id]) then
        idle[#idle + 1] = {id, queue}
      elseif keep > 0 and serves[queue] then
        keep = keep - 1
        claimed[#claimed + 1] = {id, base + (group[4] or 0) + 1, 0, 0}
        kept[#kept + 1] = {id, queue, base + (group[4] or 0) + 1}
      else
        waiting[#waiting + 1] = id
      end
    end
    if #waiting > 0 then
      ready[#ready + 1] = {queue, waiting}
      fences[#ready] = base + (group[4] or 0)
      events[#events + 1] = {'ready', waiting, queue}
    end
  end
  if #kept > 0 then
    local ids = {}
    for i, pair in ipairs(kept) do ids[i] = pair[1] end
    events[#events + 1] = {'claimed', ids, arg.holder}
  end
  local now = #events > 0 and record(events) or 0
  for _, pair in ipairs(kept) do
    writes[#writes + 1] = pair[1]
    writes[#writes + 1] = cmsgpack.pack({CLAIMED, pair[3], 0, 0, pair[2], now, arg.holder})
  end
  for i, group in ipairs(ready) do
    local state = cmsgpack.pack({READY, fences[i], 0, 0, group[1], now, ''})
    for _, id in ipairs(group[2]) do
      writes[#writes + 1] = id
      writes[#writes + 1] = state
    end
  end
  for _, pair in ipairs(idle) do
    writes[#writes + 1] = pair[1]
    writes[#writes + 1] = cmsgpack.pack({IDLE, base, 0, 0, pair[2], now, '', 1})
  end
  for _, pair in ipairs(taken or {}) do
    pair[2][AT] = now
    writes[#writes + 1] = pair[1]
    writes[#writes + 1] = cmsgpack.pack(pair[2])
  end
  in_slices('HSET', CALLS, writes)
  return claimed, ready, now
end
