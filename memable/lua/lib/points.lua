-- Points: places where an instance waits for a signal or a deadline. An open one has a suspended record under its key, what
-- scripts must know of it under `_open:KEY`, a line in the instance's `waiting`, and a member in `timers` if it has a deadline.
-- A `first` is a point of kind `choice` beside those of its members, with a line in `choosing` instead.
-- `here` names what all of this is in: {instance =, steps =, timers =, name =}, keys and the instance's name.

-- kinds of points that a signal completes: a timer's, too, before its time
local TAKES_SIGNALS = {signal = true, timer = true}

-- which field of the instance has a line for an open point
local function line_field(kind)
  return kind == 'retry' and 'retrying' or kind == 'choice' and 'choosing' or 'waiting'
end

-- `KIND STARTED_MS ACCEPTS`; of a member of a `first`, whose key is `choice`, `KIND STARTED_MS`, CHOICE and ACCEPTS, a line each;
-- of a `first` itself, ACCEPTS are its members
local function open_line(kind, started_ms, choice, accepts)
  return kind .. ' ' .. started_ms .. (choice == '' and ' ' or '\n' .. choice .. '\n') .. accepts
end

local function read_open(line)
  local kind, started_ms, races, rest = string.match(line, '^(%S+) (%d+)(.)(.*)$')
  local point = {kind = kind, started_ms = started_ms, choice = '', accepts = rest}
  if races == '\n' then point.choice, point.accepts = string.match(rest, '^([^\n]*)\n(.*)$') end
  return point
end

local function open_point(steps, key)
  local open = redis.call('HGET', steps, '_open:' .. key)
  return open and read_open(open)
end

local function write_open(here, wake, key, kind, head, accepts, choice, started, due_ms)
  local record = head .. ',"started_ms":' .. whole(started)
  if due_ms then
    record = record .. ',"due_ms":' .. whole(due_ms)
    set_timer(here.timers, wake, timer_member(here.name, key), due_ms)
  end
  redis.call('HSET', here.steps, key, record .. '}', '_open:' .. key, open_line(kind, whole(started), choice, accepts))
  add_line(here.instance, line_field(kind), key)
end

local function close_point(here, key, kind)
  redis.call('ZREM', here.timers, timer_member(here.name, key))
  forget_line(here.instance, line_field(kind), key)
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
