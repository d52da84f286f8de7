-- Opens a run and makes its roots ready. Opening it again changes nothing.
-- arg: run_id, plan, name, tenant, roots {{queue, {ids}}}, retention_ms, keep_ms (its keys live so long unless it ends),
--      origin ('', or in whose course it is opened); ARGV[2]: envelope of the inputs
--      letters  {{key, message}}   of the roots, where the broker is this server
--      plan_key, lists {keys}: where the plan has to be, and the run entered, before it is opened ('' and none: both are)
-- Returns 0 when the run is already there, -1 when it is not prepared, 2 when all letters are in their queues, 1 when one is not.
if redis.call('EXISTS', RUN) == 1 then return 0 end
if arg.plan_key ~= '' and redis.pcall('EXISTS', arg.plan_key) ~= 1 then return -1 end
for _, list in ipairs(arg.lists) do
  if type(redis.pcall('ZSCORE', list, arg.run_id)) ~= 'string' then return -1 end   -- what is refused is not there, either
end
local events = {{'opened', arg.plan, arg.name}}
redis.call('HSET', RUN, 'status', 'running', 'plan', arg.plan, 'name', arg.name,
  'retention_ms', arg.retention_ms, 'error', '')
redis.call('PEXPIRE', RUN, arg.keep_ms)   -- also where one of the next commands is refused
if arg.tenant ~= '' then redis.call('HSET', RUN, 'tenant', arg.tenant) end
if arg.origin ~= '' then redis.call('HSET', RUN, 'origin', arg.origin) end
redis.call('HSET', OUT, 'in', ARGV[2])
release(arg.roots, events)
local entry = redis.call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
redis.call('HSET', RUN, 'created_ms', string.match(entry[1], '^%d+'))
for _, key in ipairs({RUN, CALLS, OUT, EVENTS, BLOBS}) do
  redis.call('PEXPIRE', key, arg.keep_ms)
end
tell(arg.tenant, arg.name, '', 'running', arg.keep_ms)
local answer = 2
for _, letter in ipairs(arg.letters) do
  if type(redis.pcall('LPUSH', letter[1], letter[2])) ~= 'number' then answer = 1 end   -- what is refused must not undo the opening
end
return answer
