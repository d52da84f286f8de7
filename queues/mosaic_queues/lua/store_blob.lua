-- Stores a payload beside its run. It lives as long as the run; of one that is not open (yet), for a while.
-- arg: id, unopened_ms; ARGV[2]: the bytes
-- Returns 1.
redis.call('HSET', BLOBS, arg.id, ARGV[2])
if redis.call('PTTL', BLOBS) < 0 then
  local left = redis.call('PTTL', RUN)
  redis.call('PEXPIRE', BLOBS, left > 0 and left or arg.unopened_ms)
end
return 1
