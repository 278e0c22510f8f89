-- open: let signals and timers find the points of a run that goes on, and read those that are completed already.
-- USES  time, timers, points, open, turn, knowledge
-- KEYS  instance  hash  waiting, turn
-- KEYS  steps     hash  suspended records
-- KEYS  timers    zset  deadlines
-- ARGV  name, lease, known, turn, wake, withdrawn_count, withdrawn_and_points...
-- RETURNS  DONE key, record, key, record … of completed points | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `turn`, the number of the run's last call that opened or withdrew: changes nothing, and gets the same answer
local held = redis.call('HMGET', instance, 'lease', 'turn')
if held[1] ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local repeated = is_repeated(turn, held[2])
local here = {instance = instance, steps = steps, timers = timers, name = name}
local points, has_withdrawn = take_withdrawn(here, tonumber(withdrawn_count), withdrawn_and_points, repeated)
local satisfied, has_opened = open_points(here, wake, points, repeated)
if has_withdrawn or has_opened then redis.call('HSET', instance, 'turn', turn) end
return satisfied
