-- open: let signals and timers find the points of a run that goes on, and read those that are completed already.
-- USES  time, points, open, knowledge
-- KEYS  instance  hash  waiting
-- KEYS  steps     hash  suspended records
-- KEYS  timers    zset  deadlines
-- ARGV  name, lease, known, wake, fired_head, fired_tail, withdrawn_count, withdrawn_and_points...
-- RETURNS  DONE key, record, key, record … of completed points | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `lease` and what is open or recorded: the same answer
if redis.call('HGET', instance, 'lease') ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local points = take_withdrawn(instance, steps, timers, name, tonumber(withdrawn_count), withdrawn_and_points)
return open_points(instance, steps, timers, name, wake, fired_head, fired_tail, points)
