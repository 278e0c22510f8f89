-- What a life leaves to the next one: the ids of the signals that it took, and what came to it and was not read by then. Its senders
-- were told that it is accepted, so a signal waits again for a point of its key, and messages stand again first in their mailbox.

local function put_back_messages(inbox, messages)
  -- the last first, so that the first comes to stand before it
  table.sort(messages, function(one, other) return one.number > other.number end)
  for _, each in ipairs(messages) do
    -- none: a fork, whose mailbox has seen nothing. Its messages stand before the first
    local slot = redis.call('HGET', inbox, 'read:' .. each.mailbox) or '0'
    redis.call('HINCRBY', inbox, 'read:' .. each.mailbox, -1)
    put_kept(inbox, 'mail:' .. each.mailbox .. '/' .. slot, each.id, untimed(each.record))
  end
end

-- `read`: keys whose records the run has handed to its author
local function leave_to_next_life(instance, inbox, steps, read)
  local is_read, lines, messages = {}, {}, {}
  for _, key in ipairs(read) do is_read[key] = true end
  for _, field in ipairs(redis.call('HKEYS', steps)) do
    local key = string.match(field, '^_by:(.*)$')
    local by = key and redis.call('HGET', steps, field) or ''
    local signal_id = string.match(by, '^signal (.*)$')
    local mailbox, number, message_id = string.match(by, '^message ([^/]*)/(%-?%d+) (.*)$')
    local record = (signal_id or mailbox) and redis.call('HGET', steps, key)
    -- a timer that was to fire at once has done so
    if signal_id and (is_read[key] or not string.find(record, '"kind":"signal"', 1, true)) then
      lines[#lines + 1] = seen_line(key, signal_id)
    elseif signal_id then
      put_kept(inbox, 'signal:' .. key, signal_id, untimed(record))
    elseif mailbox and not is_read[key] then
      messages[#messages + 1] = {mailbox = mailbox, id = message_id, record = record, number = tonumber(number)}
    end
  end
  put_back_messages(inbox, messages)
  if #lines > 0 then remember_seen(inbox, lines) end
  -- that of a fork, which was given records, may begin here
  if redis.call('EXISTS', inbox) == 1 then redis.call('HSET', instance, 'inbox', 1) end
end
