-- Ends a run from outside: cancelled by a caller, or failed by the sweeper.
-- arg: status, error
-- Returns msgpack {ended, {{holder, {ids}}}}: whether it was running until now, and whose claims ended with it.
if redis.call('HGET', RUN, 'status') ~= 'running' then return cmsgpack.pack({false, {}}) end
local holders = held()
close_run(arg.status, arg.error, {})
return cmsgpack.pack({true, holders})
