-- Shared by all transitions; put before each script when it is loaded.
--
-- KEYS of every transition, all in the slot of {run_id}:
--   1 run     hash   status, plan, name, created_ms, ended_ms, error, retention_ms, j:<join> counters
--   2 calls   hash   live calls: id -> msgpack {state, fence, failures, losses, queue, at_ms, holder}
--   3 out     hash   finished calls: id -> payload envelope
--   4 events  stream field e: msgpack list of events
--   5 blobs   hash   payloads
--   6 end     stream one entry when the run is over: what waits for the end reads this alone
-- ARGV[1] is one msgpack map; payload envelopes follow as they are. A reply, where there is one, is msgpack too.
local RUN, CALLS, OUT, EVENTS, BLOBS, END = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local READY, DELAYED, CLAIMED = 'r', 'd', 'c'
local STATE, FENCE, FAILURES, LOSSES, QUEUE, AT, HOLDER = 1, 2, 3, 4, 5, 6, 7
local MAX_ARGS = 4000
local MAX_EVENTS = 200000

local arg = cmsgpack.unpack(ARGV[1])

-- Runs a command with any number of trailing arguments, in slices that Lua can unpack.
local function in_slices(command, key, values)
  for first = 1, #values, MAX_ARGS do
    redis.call(command, key, unpack(values, first, math.min(first + MAX_ARGS - 1, #values)))
  end
end

-- The states of the calls named in `ids`, false where a call is not alive.
local function states(ids)
  local found = {}
  for first = 1, #ids, MAX_ARGS do
    local last = math.min(first + MAX_ARGS - 1, #ids)
    local raw = redis.call('HMGET', CALLS, unpack(ids, first, last))
    for i = 1, last - first + 1 do
      found[first + i - 1] = raw[i] and cmsgpack.unpack(raw[i])
    end
  end
  return found
end

-- Appends one entry and returns the server's time in milliseconds.
local function record(events)
  local id = redis.call('XADD', EVENTS, 'MAXLEN', '~', MAX_EVENTS, '*', 'e', cmsgpack.pack(events))
  return tonumber(string.match(id, '^%d+'))
end

-- Ends the run: nothing of it is alive any more, and all of it expires.
local function close_run(status, error, events)
  local retention = redis.call('HGET', RUN, 'retention_ms')
  events[#events + 1] = {'closed', status, error}
  local now = record(events)
  redis.call('HSET', RUN, 'status', status, 'ended_ms', now, 'error', error)
  redis.call('DEL', CALLS)
  redis.call('XADD', END, '*', 'status', status)
  for _, key in ipairs({RUN, OUT, EVENTS, BLOBS, END}) do
    redis.call('PEXPIRE', key, retention)
  end
end

-- Makes calls ready: the first `arg.keep` of them on queues that the caller serves are claimed for it.
-- Returns {claimed = {{id, fence, failures, losses}}, ready = {{queue, {ids}}}} and records `events` before.
local function release(groups, events)
  local claimed, ready, writes, keep = {}, {}, {}, arg.keep or 0
  local serves = {}
  for _, queue in ipairs(arg.serves or {}) do serves[queue] = true end
  local kept = {}
  for _, group in ipairs(groups) do
    local queue, ids, waiting = group[1], group[2], {}
    for _, id in ipairs(ids) do
      if keep > 0 and serves[queue] then
        keep = keep - 1
        claimed[#claimed + 1] = {id, 1, 0, 0}
        kept[#kept + 1] = {id, queue}
      else
        waiting[#waiting + 1] = id
      end
    end
    if #waiting > 0 then
      ready[#ready + 1] = {queue, waiting}
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
    writes[#writes + 1] = cmsgpack.pack({CLAIMED, 1, 0, 0, pair[2], now, arg.holder})
  end
  for _, group in ipairs(ready) do
    local state = cmsgpack.pack({READY, 0, 0, 0, group[1], now, ''})
    for _, id in ipairs(group[2]) do
      writes[#writes + 1] = id
      writes[#writes + 1] = state
    end
  end
  in_slices('HSET', CALLS, writes)
  return claimed, ready
end
