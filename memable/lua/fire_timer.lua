-- fire_timer: complete the point of a timer that is due.
-- MOVES  suspended -> queued
-- USES  time, state, timers, lines, points, completion
-- KEYS  instance   hash    status, news
-- KEYS  steps      hash    the record
-- KEYS  stream     stream  the entry of an instance that was suspended
-- KEYS  timers     zset    the timer goes
-- KEYS  inbox      hash    what was kept for those that raced with it goes
-- KEYS  suspended  zset    from
-- KEYS  queued     zset    to
-- ARGV  id, name, key, events, kinds_heads_tails...
-- RETURNS  DONE fired | NOT_REACHED not due, or gone | UNKNOWN nobody waits for it, removed
-- RETRY  the timer is gone: NOT_REACHED. Two leaders at once are harmless for the same reason
local member = timer_member(name, key)
local due_ms = redis.call('ZSCORE', timers, member)
if not due_ms or tonumber(due_ms) > now_ms() then return NOT_REACHED end
local point = open_point(steps, key)
if not point then
  redis.call('ZREM', timers, member)
  return UNKNOWN
end
local here = {instance = instance, steps = steps, timers = timers, inbox = inbox, name = name}
if point.kind == 'retry' then
  withdraw_point(here, key)  -- its record stays: the step is to be called again
  deliver(instance, stream, id, name, suspended, queued, events)
  return DONE
end
-- only Redis knows what waits for this deadline, and so what is recorded now that it comes first
local late = {}
for at = 1, #kinds_heads_tails, 3 do
  late[kinds_heads_tails[at]] = {kinds_heads_tails[at + 1], kinds_heads_tails[at + 2]}
end
local head, tail = unpack(late[point.kind])
complete_point(here, key, point, 'timer', head, tail)
deliver(instance, stream, id, name, suspended, queued, events)
return DONE
