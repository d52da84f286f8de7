-- A submission's place is its run's from now on.
-- KEYS[1]: as in occupy.lua
-- arg: place; run: its id; lapse: (ms) no run is open for longer
redis.call('ZREM', KEYS[1], arg.place)
redis.call('ZADD', KEYS[1], now + arg.lapse, arg.run)
redis.call('PEXPIRE', KEYS[1], arg.lapse)
return 1
