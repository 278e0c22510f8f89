-- Opening points, and withdrawing others. `points` is flat, nine values each: key, kind, head of the suspended record, what it
-- accepts (types, or the mailbox of a message), the deadline, either `after_ms` (from the call) or `at_ms` (absolute), else both empty; `elapsed_ms` since the call; and
-- head and tail of what is recorded when the deadline comes first, empty without one.
local POINT_SIZE = 9

local function write_open(here, wake, key, kind, head, accepts, started, due_ms)
  local record = head .. ',"started_ms":' .. whole(started)
  if due_ms then
    record = record .. ',"due_ms":' .. whole(due_ms)
    set_timer(here.timers, wake, timer_member(here.name, key), due_ms)
  end
  redis.call('HSET', here.steps, key, record .. '}', '_open:' .. key, kind .. ' ' .. whole(started) .. ' ' .. accepts)
  add_line(here.instance, 'waiting', key)
end

-- opens one point of `points`, which is neither open nor completed; or nothing but a record, which is returned, if what it waits
-- for is in the inbox, or its deadline is past already
local function open_or_complete(here, wake, key, kind, head, accepts, after_ms, at_ms, elapsed_ms, late_head, late_tail)
  if kind == 'retry' then return open_retry(here, wake, key, head, accepts, after_ms, elapsed_ms) end
  local now = now_ms()
  local started = now - tonumber(elapsed_ms)
  -- before the deadline: its sender was told that it is accepted
  local kept = here.has_inbox and take_from_inbox(here.inbox, key, kind, accepts)
  if kept then
    if kind == 'timer' then kept.head, kept.tail = late_head, late_tail end
    local record = timed(kept.head, started, now, kept.tail)
    redis.call('HSET', here.steps, key, record, '_by:' .. key, kept.by)
    return record
  end
  local due_ms = due_at(started, after_ms, at_ms)
  if due_ms and due_ms <= now then
    local record = timed(late_head, started, now, late_tail)
    redis.call('HSET', here.steps, key, record, '_by:' .. key, 'timer')
    return record
  end
  write_open(here, wake, key, kind, head, accepts, started, due_ms)
end

-- returns DONE, key, record, key, record … of the points that are completed already: by a signal or a message that came
-- meanwhile or before, or by a deadline that is past; and whether any was opened. A point that is open already keeps its first
-- deadline; a repeated call opens none.
local function open_points(here, wake, points, repeated)
  local satisfied, has_opened = {DONE}, false
  for at = 1, #points, POINT_SIZE do
    local key = points[at]
    local known = redis.call('HMGET', here.steps, '_open:' .. key, key)
    if not known[1] then
      local record = known[2]
      if not repeated and (not record or fails_again(here.steps, key, points[at + 1], points[at + 3])) then
        record = open_or_complete(here, wake, unpack(points, at, at + POINT_SIZE - 1))
        has_opened = has_opened or not record
      end
      if record then
        satisfied[#satisfied + 1] = key
        satisfied[#satisfied + 1] = record
      end
    end
  end
  return satisfied, has_opened
end

-- `open` and `park` get one list: first the keys to withdraw, then the points; returns the latter, and whether any was
-- withdrawn. A repeated call withdraws none.
local function take_withdrawn(here, count, both, repeated)
  local points, has_withdrawn = {}, false
  for at, each in ipairs(both) do
    if at > count then
      points[at - count] = each
    elseif not repeated and withdraw_point(here, each) then
      has_withdrawn = true
    end
  end
  return points, has_withdrawn
end
