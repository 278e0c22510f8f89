-- Opening one point of `points`, which is flat, ten values each: key, kind, head of the suspended record, what it accepts (types, or
-- the mailbox of a message), `choice` (the key of the `first` that it is a member of, or empty), the deadline, either `after_ms`
-- (from the call) or `at_ms` (absolute), else both empty; `elapsed_ms` since the call; and head and tail of what is recorded when
-- the deadline comes first, empty without one. A `first` comes before its members, and accepts these.
local POINT_SIZE = 10

-- opens a point, which is neither open nor completed; or nothing but a record, which is returned, if what it waits for is in the
-- inbox, or its deadline is past already
local function open_or_complete(here, wake, key, kind, head, accepts, choice, after_ms, at_ms, elapsed_ms, late_head, late_tail)
  if kind == 'retry' then return open_retry(here, wake, key, head, accepts, after_ms, elapsed_ms) end
  local now = exact_ms()
  local started = math.floor(now) - tonumber(elapsed_ms)
  -- before the deadline: its sender was told that it is accepted
  local kept = here.has_inbox and take_from_inbox(here.inbox, key, kind, accepts)
  if kept then
    if kind == 'timer' then kept.head, kept.tail = late_head, late_tail end
    local record = timed(kept.head, started, now, kept.tail)
    redis.call('HSET', here.steps, key, record, '_by:' .. key, kept.by)
    decide(here, choice, key)
    return record
  end
  local due_ms = due_at(started, after_ms, at_ms)
  if due_ms and due_ms <= now then
    local record = timed(late_head, started, now, late_tail)
    redis.call('HSET', here.steps, key, record, '_by:' .. key, 'timer')
    decide(here, choice, key)
    return record
  end
  write_open(here, wake, key, kind, head, accepts, choice, started, due_ms)
end

-- whether an open point, whose line this is, races otherwise than it did: with others, for the first time, or no longer
local function is_regrouped(here, key, line, accepts, choice)
  local point = read_open(line)
  if point.kind ~= 'choice' then accepts = point.accepts end
  local now = open_line(point.kind, point.started_ms, choice, accepts)
  if now == line then return false end
  redis.call('HSET', here.steps, '_open:' .. key, now)
  return true
end
