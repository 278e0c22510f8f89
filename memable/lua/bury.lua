-- bury: tell a parent that a child of it whose hash is lost has failed: it would wait for it for ever.
-- MOVES  suspended -> queued  the parent
-- USES  time, state, status, timers, lines, points, children, family
-- KEYS  child      hash  is not there
-- KEYS  timers     zset  of the parent's
-- KEYS  parent...  hash  instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, parent_id, parent_name, parent_events, error, mends
-- RETURNS  DONE told; unless it `mends`, it is to be told | ALREADY the child is there, or told its end, or is not of its parent's life
-- RETRY  its end is told: ALREADY
if redis.call('EXISTS', child) == 1 then return ALREADY end
local kin = parent_of(parent, timers, parent_id, parent_name, parent_events)
local key, number = place_in_family(kin, id)
if not key or redis.call('HEXISTS', kin.family, key .. '~' .. number) == 1 then return ALREADY end
if tonumber(number) >= tonumber(redis.call('HGET', kin.family, '_created:' .. key)) then return ALREADY end
if is_terminal(redis.call('HGET', kin.instance, 'status')) then return ALREADY end
if mends == '1' then tell_family(kin, id, 'failed', error) end
return DONE
