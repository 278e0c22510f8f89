-- Opening points, and withdrawing others. `points` is flat, nine values each: key, kind, head of the suspended record, what it
-- accepts (types, or the mailbox of a message), the deadline, either `after_ms` (from the call) or `at_ms` (absolute), else both empty; `elapsed_ms` since the call; and
-- head and tail of what is recorded when the deadline comes first, empty without one.
local POINT_SIZE = 9

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
-- meanwhile or before, or by a deadline that is past; of children that are decided the record is empty. And whether any point
-- was changed: one that is open already keeps its first deadline; a repeated call opens none. nil: children that the run has
-- made are gone.
local function open_points(here, wake, points, repeated)
  local satisfied, has_changed = {DONE}, false
  for at = 1, #points, POINT_SIZE do
    local key = points[at]
    local known = redis.call('HMGET', here.steps, '_open:' .. key, key)
    if points[at + 1] == 'child' and (known[1] or not known[2]) then
      local waits_for = points[at + 3]
      if waits_for == '-' then waits_for = known[1] and string.match(known[1], '^%S+ %d+ (.*)$') or '0 0 0' end
      if not has_made(here.family, key, waits_for) then return nil end
      if is_decided(here.family, key, waits_for) then
        -- without a record, which only the run can write
        has_changed = withdraw_point(here, key) or has_changed
        satisfied[#satisfied + 1] = key
        satisfied[#satisfied + 1] = ''
      elseif not known[1] and not repeated then
        open_or_complete(here, wake, unpack(points, at, at + POINT_SIZE - 1))
        has_changed = true
      end
    elseif not known[1] then
      local record = known[2]
      if not repeated and (not record or fails_again(here.steps, key, points[at + 1], points[at + 3])) then
        record = open_or_complete(here, wake, unpack(points, at, at + POINT_SIZE - 1))
        has_changed = has_changed or not record
      end
      if record then
        satisfied[#satisfied + 1] = key
        satisfied[#satisfied + 1] = record
      end
    end
  end
  return satisfied, has_changed
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
