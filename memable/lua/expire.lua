-- expire: fail an instance whose deadline has come, wherever it is.
-- MOVES  queued | running | suspended -> failed
-- MOVES  suspended -> queued  its parent
-- USES  time, state, timers, lines, points, children, family, terminal
-- KEYS  instance   hash    status, error
-- KEYS  steps      hash    open points are withdrawn
-- KEYS  stream     stream  its entry goes
-- KEYS  timers     zset    its timers go
-- KEYS  inbox      hash    what is unread in it expires
-- KEYS  expiry     zset    when retention ends
-- KEYS  queued     zset    from, this or one of the next
-- KEYS  running    zset
-- KEYS  suspended  zset
-- KEYS  failed     zset    to
-- KEYS  family     hash    of a parent: expires with it
-- KEYS  bereaved   zset    a parent that leaves living children
-- KEYS  parent...  hash    of a child, its parent's: instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, name, error, message, retention_ms, events, wake, parent_id, parent_name, parent_events
-- RETURNS  DONE failed | NOT_REACHED not due, or gone | UNKNOWN there is none that lives, removed | STALE its parent is another
-- RETRY  the timer is gone: NOT_REACHED. Two leaders at once are harmless for the same reason
local member = timer_member(name, DEADLINE_KEY)
local due_ms = redis.call('ZSCORE', timers, member)
if not due_ms or tonumber(due_ms) > now_ms() then return NOT_REACHED end
local known = redis.call('HMGET', instance, 'status', 'parent')
local from = ({queued = queued, running = running, suspended = suspended})[known[1]]
if not from then
  redis.call('ZREM', timers, member)
  return UNKNOWN
end
if (known[2] or '') ~= parent_name then return STALE end
come_to_end({
  instance = instance, steps = steps, stream = stream, timers = timers, inbox = inbox, family = family, bereaved = bereaved,
  from = from, final = failed, expiry = expiry, id = id, name = name, events = events, wake = wake,
  parent = parent_of(parent, timers, parent_id, parent_name, parent_events),
}, read_ending(instance), {status = 'failed', field = 'error', value = error, message = message, retention_ms = retention_ms})
return DONE
