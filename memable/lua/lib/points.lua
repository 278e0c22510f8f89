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
  note_line(here, line_field(kind), key)
end

local function close_point(here, key, kind)
  write_lines(here)
  redis.call('ZREM', here.timers, timer_member(here.name, key))
  forget_lines(here.instance, line_field(kind), {[key] = true})
end

-- whether any was open. A point that was completed meanwhile keeps its record: its sender was told that it is accepted. So does a
-- step that is to be called again: it has been called so often
local function withdraw_points(here, keys)
  write_lines(here)
  local gone = {}
  for _, key in ipairs(keys) do
    local point = open_point(here.steps, key)
    if point then
      redis.call('HDEL', here.steps, '_open:' .. key, unpack(point.kind == 'retry' and {} or {key}))
      redis.call('ZREM', here.timers, timer_member(here.name, key))
      local field = line_field(point.kind)
      gone[field] = gone[field] or {}
      gone[field][key] = true
    end
  end
  for field, is_gone in pairs(gone) do forget_lines(here.instance, field, is_gone) end
  return next(gone) ~= nil
end

local function withdraw_point(here, key)
  return withdraw_points(here, {key})
end

-- `...`: keys, one a line, or nothing
local function withdraw_all(here, ...)
  local all = {}
  for at = 1, select('#', ...) do
    for key in string.gmatch(select(at, ...) or '', '[^\n]+') do all[#all + 1] = key end
  end
  withdraw_points(here, all)
end
