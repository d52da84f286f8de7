-- Lowers the buckets of a call that runs to what their provider said.
-- arg: permit, requests_told and tokens_told {remaining, reset_ms}
-- Returns whether there is such a permit: 1 or 0.
tidy()
local record = find(arg.permit)
if not record then return cmsgpack.pack(0) end
for _, take in ipairs(record[TAKES]) do
  write_bucket(take, told(take, read_bucket(take)))
end
return cmsgpack.pack(1)
