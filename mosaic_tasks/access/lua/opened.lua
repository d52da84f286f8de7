-- The place of a submission is its run's from now on, also for those who share it. Where there is none, the run has one.
-- KEYS[1], KEYS[2]: as in occupy.lua
-- arg: place; run: its id; lapse: (ms) no run is open for longer
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[1], arg.place)
redis.call('ZADD', KEYS[1], now + arg.lapse, arg.run)
redis.call('PEXPIRE', KEYS[1], arg.lapse)
return 1
