-- Points: places where an instance waits for a signal or a deadline. An open one has a suspended record under its key, what
-- scripts must know of it under `_open:KEY`, a line in the instance's `waiting`, and a member in `timers` if it has a deadline.
-- `here` names what all of this is in: {instance =, steps =, timers =, name =}, keys and the instance's name.

-- kinds of points that a signal completes: a timer's, too, before its time
local TAKES_SIGNALS = {signal = true, timer = true}

local function open_point(steps, key)
  local open = redis.call('HGET', steps, '_open:' .. key)
  if not open then return nil end
  local kind, started_ms, accepts = string.match(open, '^(%S+) (%d+) (.*)$')
  return {kind = kind, started_ms = started_ms, accepts = accepts}
end

-- there may be very many records: a duration is shorter than a second time
local function timed(head, started_ms, completed_ms, tail)
  return head .. ',"started_ms":' .. whole(started_ms) .. ',"took_ms":' .. whole(completed_ms - started_ms) .. tail
end

local function write_open(here, wake, key, kind, head, accepts, started, due_ms)
  local record = head .. ',"started_ms":' .. whole(started)
  if due_ms then
    record = record .. ',"due_ms":' .. whole(due_ms)
    set_timer(here.timers, wake, timer_member(here.name, key), due_ms)
  end
  redis.call('HSET', here.steps, key, record .. '}', '_open:' .. key, kind .. ' ' .. whole(started) .. ' ' .. accepts)
  add_line(here.instance, 'waiting', key)
end

local function close_point(here, key, kind)
  redis.call('ZREM', here.timers, timer_member(here.name, key))
  forget_line(here.instance, kind == 'retry' and 'retrying' or 'waiting', key)
end

-- whoever completes an open point comes here: a signal, a message, a deadline
local function complete_point(here, key, point, by, head, tail)
  redis.call('HDEL', here.steps, '_open:' .. key)
  redis.call('HSET', here.steps, key, timed(head, point.started_ms, now_ms(), tail), '_by:' .. key, by)
  close_point(here, key, point.kind)
end

-- whether it was open. A point that was completed meanwhile keeps its record: its sender was told that it is accepted. So does a
-- step that is to be called again: it has been called so often
local function withdraw_point(here, key)
  local point = open_point(here.steps, key)
  if not point then return false end
  redis.call('HDEL', here.steps, '_open:' .. key, unpack(point.kind == 'retry' and {} or {key}))
  close_point(here, key, point.kind)
  return true
end

local function withdraw_all(here, ...)
  for _, keys in ipairs({...}) do
    for key in string.gmatch(keys or '', '[^\n]+') do withdraw_point(here, key) end
  end
end

-- after a point was completed: an instance that waits without a stream entry is queued, a running one is told
local function deliver(instance, stream, id, name, suspended, queued, events)
  local at = redis.call('HMGET', instance, 'status', 'control', 'entry')
  if not at[3] then
    queue(instance, stream, id, at[1] == 'suspended' and suspended or queued, queued, events, {})
  elseif at[2] then
    redis.call('HINCRBY', instance, 'news', 1)
    redis.call('PUBLISH', at[2], NEWS .. ' ' .. name)
  end
end
