-- begin: queue a delayed instance whose time has come.
-- USES  time, state, timers
-- KEYS  instance  hash    entry; due and the message go
-- KEYS  stream    stream  its entry
-- KEYS  timers    zset    the timer goes
-- KEYS  queued    zset    its place stays
-- ARGV  id, name, events
-- RETURNS  DONE queued | NOT_REACHED not due, or gone | UNKNOWN nobody waits for it, removed
-- RETRY  the timer is gone: NOT_REACHED. Two leaders at once are harmless for the same reason
local member = timer_member(name, DELAY_KEY)
local due_ms = redis.call('ZSCORE', timers, member)
if not due_ms or tonumber(due_ms) > now_ms() then return NOT_REACHED end
redis.call('ZREM', timers, member)
if redis.call('HDEL', instance, 'due') == 0 then return UNKNOWN end
queue(instance, stream, id, queued, queued, events, {})
return DONE
