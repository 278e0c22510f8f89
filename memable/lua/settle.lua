-- settle: write how a step ended at last that had failed before, if this run still holds the instance.
-- USES  time, timers, lines, points, retries, knowledge
-- KEYS  instance  hash  lease, recoveries, retrying
-- KEYS  steps     hash  step key -> record, in place of a retrying one
-- KEYS  timers    zset  that of its next attempt goes, if it has one
-- ARGV  name, lease, known, key, head, tail, elapsed_ms
-- RETURNS  DONE written | ALREADY and the record that is there | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `lease` and what is recorded: ALREADY, with the same record
local held = redis.call('HMGET', instance, 'lease', 'recoveries')
if held[1] ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local now, last = exact_ms(), last_retry(steps, key)
local there = not last and redis.call('HGET', steps, key)
if there then return {ALREADY, there} end
withdraw_point({instance = instance, steps = steps, timers = timers, name = name}, key)
redis.call('HSET', steps, key, timed(head, last and last.started_ms or math.floor(now) - elapsed_ms, now, tail))
redis.call('HDEL', steps, '_retry:' .. key)
if held[2] then redis.call('HDEL', instance, 'recoveries', 'alone') end
return {DONE}
