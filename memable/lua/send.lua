-- send: hand a message to the oldest open receive of a mailbox, or keep it there until it is received.
-- MOVES  suspended -> queued
-- USES  time, state, status, timers, lines, points, inbox, completion
-- KEYS  instance   hash    status, news, inbox
-- KEYS  steps      hash    the record of a receive
-- KEYS  stream     stream  the entry of an instance that was suspended
-- KEYS  timers     zset    the deadline of a receive goes
-- KEYS  inbox      hash    the mailbox
-- KEYS  suspended  zset    from
-- KEYS  queued     zset    to
-- ARGV  id, name, mailbox, message_id, head, tail, events
-- RETURNS  DONE sent, now or by the first try | UNKNOWN instance | TERMINAL status
-- RETRY  by `message_id`, generated when the caller gives none, among the last 1,000 of the mailbox: DONE
local held = redis.call('HMGET', instance, 'status', 'inbox', 'waiting')
local status = held[1]
if not status then return {UNKNOWN} end
if held[2] and redis.call('HEXISTS', inbox, 'id:' .. mailbox .. '/' .. message_id) == 1 then return {DONE} end
if is_terminal(status) then return {TERMINAL, status} end
local must_queue_up = held[2] and has_unread(inbox, mailbox)
local number = number_message(inbox, mailbox, message_id)
if not held[2] then redis.call('HSET', instance, 'inbox', 1) end
if not must_queue_up then
  -- points stand in the order in which they were opened
  for key in string.gmatch(held[3] or '', '[^\n]+') do
    local point = open_point(steps, key)
    if point and point.kind == 'message' and point.accepts == mailbox then
      local _, by = read_next(inbox, mailbox)
      local here = {instance = instance, steps = steps, timers = timers, inbox = inbox, name = name}
      complete_point(here, key, point, by .. message_id, head, tail)
      deliver(instance, stream, id, name, suspended, queued, events)
      return {DONE}
    end
  end
end
put_kept(inbox, 'mail:' .. mailbox .. '/' .. number, message_id, head, tail)
return {DONE}
