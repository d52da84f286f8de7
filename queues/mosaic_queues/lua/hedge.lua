-- Gives a call that is claimed a shadow: the same call, ready in the queue of another target. Once for each claim.
-- arg: holder, id, fence, queue, target, reason; what is kept of where it goes is ARGV[2]
-- Returns 1 when the shadow waits to be claimed, 0 when there is none, or somebody has it already.
local shadow_id = arg.id .. SHADOW
local call, shadow = unpack(states({arg.id, shadow_id}))
if not is_held(call, arg.fence) then return 0 end
if shadow or call[HEDGED] == arg.fence then return shadow and shadow[STATE] == READY and 1 or 0 end
local now = record({{'hedged', shadow_id, arg.target, arg.reason, arg.holder, arg.fence}})
call[HEDGED] = arg.fence
local waiting = {READY, arg.fence - 1, 0, 0, arg.queue, now, ''}
redis.call('HSET', CALLS, arg.id, cmsgpack.pack(call), shadow_id, cmsgpack.pack(waiting))
redis.call('HSET', OUT, shadow_id .. '>', ARGV[2])
return 1
