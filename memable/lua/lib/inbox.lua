-- The inbox: what came before the instance waits for it, and is kept. The instance's field `inbox` says that there is one, so that
-- those without one pay nothing for it.
-- `signal:KEY` is a signal: its id, head and tail of the record that it will be, one a line (JSON has no line feed of its own).

local function kept_signal(inbox, key)
  local kept = redis.call('HGET', inbox, 'signal:' .. key)
  if not kept then return nil end
  local id, head, tail = string.match(kept, '^([^\n]*)\n([^\n]*)\n(.*)$')
  return {id = id, head = head, tail = tail}
end

local function keep_signal(instance, inbox, key, id, head, tail)
  redis.call('HSET', inbox, 'signal:' .. key, id .. '\n' .. head .. '\n' .. tail)
  redis.call('HSET', instance, 'inbox', 1)
end
