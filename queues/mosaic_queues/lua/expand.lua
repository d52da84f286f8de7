-- Turns an opening call of a fan-out into one call an item; the join n<node> waits for all of them.
-- arg: holder, id, fence, join, size, items {{queue, {ids}}}, close {{queue, {id}}}, keep, serves
-- An empty list makes the closing call ready at once.
-- Returns as advance does.
local call = states({arg.id})[1]
if not (call and call[STATE] == CLAIMED and call[FENCE] == arg.fence) then
  return cmsgpack.pack({{arg.id}, {}, {}, false, {}})
end
local events = {{'expanded', arg.id, arg.size, arg.holder}}
local groups = arg.close
if arg.size > 0 then
  redis.call('HSET', RUN, 'j:' .. arg.join, -arg.size)
  groups = arg.items
end
local claimed, ready = release(groups, events)
redis.call('HDEL', CALLS, arg.id)   -- last: an emptied hash would lose its expiry
return cmsgpack.pack({{}, claimed, ready, false, {}})
