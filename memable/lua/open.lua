-- open: let signals and timers find the points of a run that goes on, and read those that are completed already.
-- USES  time, timers, lines, points, inbox, retries, children, completion, open, open_all, turn, knowledge
-- KEYS  instance  hash  waiting, choosing, turn
-- KEYS  steps     hash  suspended records
-- KEYS  timers    zset  deadlines
-- KEYS  inbox     hash  what came before its point was opened goes to it
-- KEYS  family    hash  how its children have ended
-- ARGV  name, lease, known, turn, wake, withdrawn_count, withdrawn_and_points...
-- RETURNS  DONE key, record, key, record … of completed points | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `turn`, the number of the run's last call that opened or withdrew: changes nothing, and gets the same answer
local held = redis.call('HMGET', instance, 'lease', 'turn', 'inbox')
if held[1] ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local repeated = is_repeated(turn, held[2])
local here = {
  instance = instance, steps = steps, timers = timers, inbox = inbox, has_inbox = held[3], family = family, name = name,
}
local points, has_withdrawn = take_withdrawn(here, tonumber(withdrawn_count), withdrawn_and_points, repeated)
local satisfied, has_changed = open_points(here, wake, points, repeated)
if not satisfied then return {FORGOTTEN} end
if has_withdrawn or has_changed then redis.call('HSET', instance, 'turn', turn) end
return satisfied
