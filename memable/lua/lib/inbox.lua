-- The inbox: what came before the instance waits for it, and is kept. The instance's field `inbox` says that there is one, so that
-- those without one pay nothing for it.
-- `signal:KEY` is a signal. Of each mailbox, `sent:MAILBOX` and `read:MAILBOX` count the messages, `mail:MAILBOX/N` is the Nth while
-- it is unread; `id:MAILBOX/ID` is the N of a message id, `nth:MAILBOX/N` the id of the Nth, so that it can be forgotten.
-- Messages are read in order, and as soon as they can be: a mailbox with an unread one has no open receive.

-- that many ids of a mailbox are remembered: a message sent again is recognised until so many others have come
local REMEMBERED_IDS = 1000

-- id, head and tail of the record that it will be, one a line: JSON has no line feed of its own
local function put_kept(inbox, field, id, head, tail)
  redis.call('HSET', inbox, field, id .. '\n' .. head .. '\n' .. tail)
end

local function get_kept(inbox, field)
  local kept = redis.call('HGET', inbox, field)
  if not kept then return nil end
  local id, head, tail = string.match(kept, '^([^\n]*)\n([^\n]*)\n(.*)$')
  return {id = id, head = head, tail = tail}
end

-- `by`: what completes the point, up to the id
local function take_kept(inbox, field, by)
  local kept = get_kept(inbox, field)
  if not kept then return nil end
  redis.call('HDEL', inbox, field)
  kept.by = by .. kept.id
  return kept
end

local function has_unread(inbox, mailbox)
  local counts = redis.call('HMGET', inbox, 'sent:' .. mailbox, 'read:' .. mailbox)
  return (counts[1] or '0') ~= (counts[2] or '0')
end

-- returns which of the mailbox's messages it is
local function number_message(inbox, mailbox, message_id)
  local number = redis.call('HINCRBY', inbox, 'sent:' .. mailbox, 1)
  redis.call('HSET', inbox, 'id:' .. mailbox .. '/' .. message_id, number, 'nth:' .. mailbox .. '/' .. number, message_id)
  local old = 'nth:' .. mailbox .. '/' .. number - REMEMBERED_IDS
  local forgotten = redis.call('HGET', inbox, old)
  if forgotten then redis.call('HDEL', inbox, old, 'id:' .. mailbox .. '/' .. forgotten) end
  return number
end

-- returns where the next message stands, and what completes the point that gets it, up to its id
local function read_next(inbox, mailbox)
  local place = mailbox .. '/' .. redis.call('HINCRBY', inbox, 'read:' .. mailbox, 1)
  return 'mail:' .. place, 'message ' .. place .. ' '
end

-- what a point that is about to be opened finds
local function take_from_inbox(inbox, key, kind, accepts)
  if TAKES_SIGNALS[kind] then
    local kept = take_kept(inbox, 'signal:' .. key, 'signal ')
    -- nobody could tell its sender that its type is wrong
    if kept then kept.head = kept.head .. ',"early":true' end
    return kept
  end
  if kind == 'message' and has_unread(inbox, accepts) then
    return take_kept(inbox, read_next(inbox, accepts))
  end
end
