-- cancel: end an instance at once, wherever it is.
-- USES  time, state, timers, points, terminal, tokens
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
-- ARGV  id, name, life, token, reason, retention_ms, events
-- RETURNS  DONE cancelled, now or by the first try | ALREADY it was terminal; what it is now: status, message, waiting | UNKNOWN instance, or another of this id than that which was meant
-- RETRY  by `cancelled_by`, the tokens of the last 16 cancels: as the first time, also when it was resumed since
local known = redis.call('HMGET', instance, 'status', 'message', 'waiting', 'cancelled_by', 'invoked_by', 'life')
local status, tokens = known[1], known[4]
-- the caller has read the life: a retry must not end a namesake that was invoked since
if not status or (known[5] or known[6]) ~= life then return {UNKNOWN} end
local effective, idle = token .. '+', token .. '-'
if knows_token(tokens, effective) then return {DONE} end
local from = ({queued = queued, running = running, suspended = suspended})[status]
if not from or knows_token(tokens, idle) then
  -- noted all the same: its retry must not cancel what others have resumed meanwhile
  if not knows_token(tokens, idle) then redis.call('HSET', instance, 'cancelled_by', with_token(tokens, idle)) end
  return {ALREADY, status, known[2], known[3] or ''}
end
come_to_end({
  instance = instance, steps = steps, stream = stream, timers = timers, inbox = inbox,
  from = from, final = cancelled, expiry = expiry, id = id, name = name, events = events,
}, {
  status = 'cancelled', message = reason, retention_ms = retention_ms, facts = {'cancelled_by', with_token(tokens, effective)},
})
return {DONE}
