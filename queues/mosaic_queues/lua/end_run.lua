-- Ends a run from outside: cancelled by a caller, or failed by the sweeper.
-- arg: status, error
-- Returns 1, or 0 when the run is unknown or already over.
if redis.call('HGET', RUN, 'status') ~= 'running' then return 0 end
close_run(arg.status, arg.error, {})
return 1
