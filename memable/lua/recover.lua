-- recover: take an instance from a worker that has not renewed for a lease, and queue it; or fail it after too many times.
-- MOVES  running -> queued | failed
-- MOVES  suspended -> queued  the parent of one that failed
-- USES  time, state, timers, lines, points, children, family, terminal
-- KEYS  instance  hash    status, recoveries, alone
-- KEYS  steps     hash    open points of a failed one are withdrawn
-- KEYS  stream    stream  a fresh entry in place of the old one
-- KEYS  timers    zset    those of a failed one go
-- KEYS  inbox     hash    what is unread in it expires
-- KEYS  running   zset    from
-- KEYS  queued    zset    to
-- KEYS  failed    zset    or to
-- KEYS  expiry    zset    of a failed one
-- KEYS  family    hash    of a parent: expires with it
-- KEYS  bereaved  zset    a parent that leaves living children
-- KEYS  parent... hash    of a child, its parent's: instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, name, entry, lease_ms, latest_ms, max_recoveries, error, message, retention_ms, events, wake, parent_id, parent_name, parent_events
-- RETURNS  DONE queued | TERMINAL failed | STALE a delivery of the past, removed | NOT_REACHED renewed or gone meanwhile, or asked too late
-- RETRY  the entry is gone: NOT_REACHED. Two leaders at once are harmless for the same reason
-- a call that waited out an outage of Redis finds everything idle, before those who hold it could renew
if now_ms() > tonumber(latest_ms) then return NOT_REACHED end
local pending = redis.call('XPENDING', stream, GROUP, 'IDLE', lease_ms, entry, entry, 1)
if #pending == 0 then return NOT_REACHED end
local known = redis.call('HMGET', instance, 'entry', 'lease', 'alone', 'parent')
if known[1] ~= entry then
  take_from_stream(stream, entry)
  return STALE
end
if not known[2] then  -- delivered, never claimed: no run was lost
  take_from_stream(stream, entry)
  redis.call('HSET', instance, 'entry', put_in_stream(stream, id))
  return DONE
end
if (known[4] or '') ~= parent_name then return NOT_REACHED end
local recoveries = redis.call('HINCRBY', instance, 'recoveries', 1)
-- in company it may have been a neighbour that took the worker down: nobody is failed for another
if known[3] == '1' and recoveries >= tonumber(max_recoveries) then
  come_to_end({
    instance = instance, steps = steps, stream = stream, timers = timers, inbox = inbox, family = family, bereaved = bereaved,
    from = running, final = failed, expiry = expiry, id = id, name = name, events = events, wake = wake,
    parent = parent_of(parent, timers, parent_id, parent_name, parent_events),
  }, read_ending(instance), {status = 'failed', field = 'error', value = error, message = message, retention_ms = retention_ms})
  return TERMINAL
end
take_from_stream(stream, entry)
queue(instance, stream, id, running, queued, events, drop_lease(instance))
return DONE
