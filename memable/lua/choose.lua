-- choose: record which member of a `first` was done first, and withdraw the others, unless another was chosen already.
-- USES  time, timers, lines, points, completion, knowledge
-- KEYS  instance  hash  lease; waiting, choosing
-- KEYS  steps     hash  the choice; open members go
-- KEYS  timers    zset  those of the members that have lost go
-- KEYS  inbox     hash  what was kept for them goes
-- ARGV  name, lease, known, key, members, chosen, elapsed_ms
-- RETURNS  DONE and the choice, made now | ALREADY and the choice that is there | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by the choice that is there: ALREADY, with the same
if redis.call('HGET', instance, 'lease') ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local open, there = open_point(steps, key), redis.call('HGET', steps, key)
if there and not open then return {ALREADY, there} end
local here = {instance = instance, steps = steps, timers = timers, inbox = inbox, name = name}
return {DONE, choose_member(here, key, open and open.started_ms or now_ms() - elapsed_ms, members, chosen)}
