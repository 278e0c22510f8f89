-- record: write a step's record once, if this run still holds the instance.
-- USES  time, knowledge
-- KEYS  instance  hash  lease, recoveries
-- KEYS  steps     hash  step key -> record
-- ARGV  lease, known, key, head, tail, elapsed_ms
-- RETURNS  DONE written | ALREADY and the record that is there | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `lease` and what is recorded: ALREADY, with the same record
local held = redis.call('HMGET', instance, 'lease', 'recoveries')
if held[1] ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local now = exact_ms()
if redis.call('HSETNX', steps, key, timed(head, math.floor(now) - elapsed_ms, now, tail)) == 0 then
  return {ALREADY, redis.call('HGET', steps, key)}
end
-- progress: whatever killed the runs before this one did not kill it here
if held[2] then redis.call('HDEL', instance, 'recoveries', 'alone') end
return {DONE}
