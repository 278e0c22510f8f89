-- finish: end an instance with its output or its error.
-- MOVES  running -> completed | failed
-- MOVES  suspended -> queued  its parent
-- USES  time, state, timers, lines, points, children, family, terminal, knowledge
-- KEYS  instance  hash    status, message, output or error, completed_ms
-- KEYS  steps     hash    open points are withdrawn
-- KEYS  stream    stream  the entry goes
-- KEYS  timers    zset    those of open points go
-- KEYS  inbox     hash    what is unread in it expires
-- KEYS  running   zset    from
-- KEYS  final     zset    to
-- KEYS  expiry    zset    when retention ends
-- KEYS  family    hash    of a parent: expires with it
-- KEYS  bereaved  zset    a parent that leaves living children
-- KEYS  parent... hash    of a child, its parent's: instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, name, lease, known, status, field, value, message, failed_keys, retention_ms, events, wake, parent_id, parent_name, parent_events
-- RETURNS  DONE ended | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone
-- RETRY  by `rested_by`: DONE; once a later run has ended or was lost: LEASE_LOST. The run is over either way
local held = read_ending(instance)
if held[1] ~= lease then return held[2] == lease and DONE or LEASE_LOST end
if is_forgotten(steps, known) then return FORGOTTEN end
come_to_end({
  instance = instance, steps = steps, stream = stream, timers = timers, inbox = inbox, family = family, bereaved = bereaved,
  from = running, final = final, expiry = expiry, id = id, name = name, events = events, wake = wake,
  parent = parent_of(parent, timers, parent_id, parent_name, parent_events),
}, held, {
  status = status, field = field, value = value, message = message, failed_keys = failed_keys,
  retention_ms = retention_ms, by = lease,
})
return DONE
