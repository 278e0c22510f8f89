-- cancel: end an instance at once, wherever it is.
-- MOVES  queued | running | suspended -> cancelled
-- MOVES  suspended -> queued  its parent
-- USES  time, state, status, timers, lines, points, children, family, terminal, tokens
-- KEYS  instance   hash    status, message, cancelled_by
-- KEYS  steps      hash    open points are withdrawn
-- KEYS  stream     stream  its entry goes
-- KEYS  timers     zset    its timers go
-- KEYS  inbox      hash    what is unread in it expires
-- KEYS  expiry     zset    when retention ends
-- KEYS  queued     zset    from, this or one of the next
-- KEYS  running    zset
-- KEYS  suspended  zset
-- KEYS  cancelled  zset    to
-- KEYS  family     hash    of a parent: expires with it
-- KEYS  bereaved   zset    a parent that leaves living children
-- KEYS  parent...  hash    of a child, its parent's: instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, name, invoked_as, token, reason, retention_ms, events, wake, parent_id, parent_name, parent_events, on_behalf
-- RETURNS  DONE cancelled, now or by the first try | ALREADY status, message, waiting | UNKNOWN, or not the one meant | LEASE_LOST the parent's run is over | STALE its parent lives, or is another
-- RETRY  by `cancelled_by`, the tokens of the last 16 cancels: as the first time, also when it was resumed since
local known = redis.call('HMGET', instance, 'status', 'message', 'waiting', 'cancelled_by', 'invoked_by', 'life', 'parent')
local status, tokens = known[1], known[4]
-- the caller has read the life: a retry must not end a namesake that was invoked since
if not status or (invoked_as ~= '' and (known[5] or known[6]) ~= invoked_as) then return {UNKNOWN} end
if (known[7] or '') ~= parent_name then return {STALE} end
local kin = parent_of(parent, timers, parent_id, parent_name, parent_events)
if on_behalf == BEREFT then
  if not is_over(kin, id) then return {STALE} end
elseif on_behalf ~= '' and redis.call('HGET', kin.instance, 'lease') ~= on_behalf then
  return {LEASE_LOST}
end
local effective, idle = token .. '+', token .. '-'
if knows_token(tokens, effective) then return {DONE} end
local from = ({queued = queued, running = running, suspended = suspended})[status]
if not from or knows_token(tokens, idle) then
  -- noted all the same: its retry must not cancel what others have resumed meanwhile
  if not knows_token(tokens, idle) then redis.call('HSET', instance, 'cancelled_by', with_token(tokens, idle)) end
  return {ALREADY, status, known[2], known[3] or ''}
end
come_to_end({
  instance = instance, steps = steps, stream = stream, timers = timers, inbox = inbox, family = family, bereaved = bereaved,
  from = from, final = cancelled, expiry = expiry, id = id, name = name, events = events, wake = wake, parent = kin,
}, read_ending(instance), {
  status = 'cancelled', message = reason, retention_ms = retention_ms, facts = {'cancelled_by', with_token(tokens, effective)},
})
return {DONE}
