-- Appends chunks of a claimed call to its streams, and wakes the mailboxes that read them.
-- arg: holder, id, fence
--      flushes  {{stream, flush, {readers}, {{kind, offset, count}}}}   their data: ARGV[2] and on
--      fields   {{name, {joins}}}   parts of the output that are complete; their envelopes follow
--      joins    {{join, size, {groups}}}   what the fields may release
--      letters  {id = {queue, key, message}}   what wakes the readers, where the broker is this server
-- Returns {state, ready {{queue, {ids}}}}; state: ok, stale, or gap where a chunk does not follow the last one.
local call, readers = call_and_readers(arg.id, arg.flushes)
if not is_held(call, arg.fence) then return cmsgpack.pack({'stale', {}}) end
local woken, counts, events = {}, {}, {}
local first = append_flushes(arg.id, arg.fence, arg.flushes, 2, woken, readers)
if not first then return cmsgpack.pack({'gap', {}}) end
for i, field in ipairs(arg.fields) do announce(field[1], ARGV[first + i - 1], field[2], counts) end
local ready = {}
if next(counts) then
  local _
  _, ready = release(raise(arg.joins, counts), events)
end
for _, group in ipairs(woken) do ready[#ready + 1] = group end
return cmsgpack.pack({'ok', ready})
