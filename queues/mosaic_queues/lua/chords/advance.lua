-- Takes a join further: notes published messages, seals it, makes it larger, counts a finished header.
-- KEYS: see open.lua
-- arg: records  {{slot, order, queue, task_id}}; the messages are the arguments from ARGV[2] on
--      size     number of headers, false: not known yet. The first one counts
--      grow     number of headers added
--      part     {slot, ok} or false, the part itself is the last argument. The first one of a slot counts
--      token    takes the dispatch lease when this step completes the join
-- Returns 1 when this step completed the join, so that the caller dispatches the body; 0; -1: no such join.
local JOIN, PARTS, SLOTS, MESSAGES = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local join = redis.call('HMGET', JOIN, 'state', 'size', 'extra', 'count', 'ok', 'quorum', 'expire_s')
if not join[1] then return -1 end
if join[1] ~= 'open' then return 0 end
local size, extra, count, ok = tonumber(join[2]), tonumber(join[3]), tonumber(join[4]), tonumber(join[5])
local quorum, expire_s = tonumber(join[6]), tonumber(join[7])

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function compare(a, b)
  for i = 1, 3 do
    if a[i] ~= b[i] then return a[i] - b[i] end
  end
  return 0
end

local function note(records)
  local names, slots, messages, at = {}, {}, {}, now()
  for i, record in ipairs(records) do names[i] = record[1] end
  local finished = redis.call('HMGET', PARTS, unpack(names))
  local seen = redis.call('HMGET', SLOTS, unpack(names))
  for i, record in ipairs(records) do
    local slot, order, queue, task_id = unpack(record)
    local newer = seen[i] and compare(order, cmsgpack.unpack(seen[i])[1]) or 1
    if newer > 0 and not finished[i] then
      slots[#slots + 1] = slot
      slots[#slots + 1] = cmsgpack.pack({order, 'w', queue, at, '', '', 0, false, task_id})
    end
    if newer >= 0 and not finished[i] then
      messages[#messages + 1] = slot
      messages[#messages + 1] = ARGV[i + 1]
    end
  end
  in_slices('HSET', SLOTS, slots)
  in_slices('HSET', MESSAGES, messages)
end

if #arg.records > 0 then note(arg.records) end
if arg.size and not size then
  size = arg.size
  redis.call('HSET', JOIN, 'size', size)
end
if arg.grow > 0 then extra = redis.call('HINCRBY', JOIN, 'extra', arg.grow) end
if arg.part and redis.call('HSETNX', PARTS, arg.part[1], ARGV[#ARGV]) == 1 then
  count = redis.call('HINCRBY', JOIN, 'count', 1)
  if quorum > 0 and arg.part[2] then ok = redis.call('HINCRBY', JOIN, 'ok', 1) end
  if redis.call('HDEL', SLOTS, arg.part[1]) == 1 then redis.call('HDEL', MESSAGES, arg.part[1]) end
end
if expire_s > 0 and (#arg.records > 0 or count % 8 == 1) then
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, expire_s) end
end

if not size then return 0 end
local missing = size + extra - count
if missing <= 0 or (quorum > 0 and (ok >= quorum or ok + missing < quorum)) then
  redis.call('HSET', JOIN, 'state', 'ready', 'lease', arg.token, 'at_ms', now())
  return 1
end
return 0
