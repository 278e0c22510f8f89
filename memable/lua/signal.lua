-- signal: complete an open point, and queue or tell the instance; or keep the signal until its point is opened.
-- MOVES  suspended -> queued
-- USES  time, state, status, timers, lines, points, inbox, seen, completion
-- KEYS  instance   hash    status, news, inbox
-- KEYS  steps      hash    the record, and who completed it
-- KEYS  stream     stream  the entry of an instance that was suspended
-- KEYS  timers     zset    the point's deadline goes
-- KEYS  inbox      hash    a signal that is kept
-- KEYS  suspended  zset    from
-- KEYS  queued     zset    to
-- ARGV  id, name, key, signal_id, keeps, tag, json_type, head, tail, timer_head, timer_tail, events
-- RETURNS  DONE completed by it, now or before, or kept | SUPERSEDED by another, perhaps kept | UNKNOWN instance | TERMINAL status | NOT_REACHED | CONFLICT a step, or kind | MISMATCH accepted types
-- RETRY  by `signal_id`, generated when the caller gives none: DONE
local held = redis.call('HMGET', instance, 'status', 'inbox')
local status = held[1]
if not status then return {UNKNOWN} end
local by, this = redis.call('HGET', steps, '_by:' .. key), 'signal ' .. signal_id
if by == this or held[2] and was_seen(inbox, key, signal_id) then return {DONE} end
if by then return {SUPERSEDED} end
local kept = held[2] and get_kept(inbox, 'signal:' .. key)
if kept and kept.id == signal_id then return {DONE} end
if is_terminal(status) then return {TERMINAL, status} end
if kept then return {SUPERSEDED, 'kept'} end
local point = open_point(steps, key)
if not point then
  if redis.call('HEXISTS', steps, key) == 1 then return {CONFLICT} end
  if keeps == '0' then return {NOT_REACHED} end
  put_kept(inbox, 'signal:' .. key, signal_id, head, tail)
  redis.call('HSET', instance, 'inbox', 1)
  return {DONE}
end
if not TAKES_SIGNALS[point.kind] then return {CONFLICT, point.kind} end
-- `accepts` is `TAG|TYPE,TYPE` or `TAG|*`: a sender that names a type must name this one, any other must send one of these JSON
-- types
local declared, types = string.match(point.accepts, '^(.*)|(.*)$')
if tag ~= '' and declared ~= '' then
  if tag ~= declared then return {MISMATCH, declared} end
elseif types ~= '*' and not string.find(',' .. types .. ',', ',' .. json_type .. ',', 1, true) then
  return {MISMATCH, declared}
end
if point.kind == 'timer' then head, tail = timer_head, timer_tail end
local here = {instance = instance, steps = steps, timers = timers, inbox = inbox, name = name}
complete_point(here, key, point, this, head, tail)
deliver(instance, stream, id, name, suspended, queued, events)
return {DONE}
