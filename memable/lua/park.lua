-- park: bring a run to rest at its points, unless one of them is completed already.
-- MOVES  running -> suspended | queued
-- USES  time, state, timers, clock, lines, points, inbox, retries, children, completion, open, open_all, turn, knowledge
-- KEYS  instance   hash    status, message, waiting, choosing, rested_by; recoveries go; turn of one that goes on
-- KEYS  steps      hash    suspended records
-- KEYS  stream     stream  the entry goes
-- KEYS  timers     zset    deadlines
-- KEYS  inbox      hash    what came before its point was opened goes to it
-- KEYS  family     hash    how its children have ended
-- KEYS  running    zset    from
-- KEYS  suspended  zset    to
-- KEYS  queued     zset    or to, if it waits for the next attempts of steps alone
-- ARGV  id, name, lease, known, entry, message, events, turn, wake, withdrawn_count, withdrawn_and_points...
-- RETURNS  DONE suspended, or queued without an entry | SATISFIED key, record, key, record … and the run goes on | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `rested_by`: DONE; once a later run has ended or was lost: LEASE_LOST. The run is over either way. One that goes on: by `turn`, as `open`
local held = redis.call('HMGET', instance, 'lease', 'rested_by', 'created_us', 'version', 'turn', 'inbox')
if held[1] ~= lease then return {held[2] == lease and DONE or LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local repeated = is_repeated(turn, held[5])
local here = {
  instance = instance, steps = steps, timers = timers, inbox = inbox, has_inbox = held[6], family = family, name = name,
}
local points, has_withdrawn = take_withdrawn(here, tonumber(withdrawn_count), withdrawn_and_points, repeated)
local satisfied, has_changed = open_points(here, wake, points, repeated)
if not satisfied then return {FORGOTTEN} end
if #satisfied > 1 then
  if has_withdrawn or has_changed then redis.call('HSET', instance, 'turn', turn) end
  satisfied[1] = SATISFIED
  return satisfied
end
take_from_stream(stream, entry)
local facts = drop_lease(instance, lease, 'recoveries')
local retries = waits_for_retries(here, points, POINT_SIZE)
if retries then
  move_index(running, queued, id, held[3])
  set_state(instance, held[4], 'queued', retries, events, facts)
else
  move_index(running, suspended, id, held[3])
  set_state(instance, held[4], 'suspended', message, events, facts, shown_point(points))
end
return {DONE}
