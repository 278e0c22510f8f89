-- Opening points, and withdrawing others. `points` is flat, seven values each: key, kind, head of the suspended record, accepted
-- types, the deadline, either `after_ms` (from the call) or `at_ms` (absolute), else both empty; and `elapsed_ms` since the call.

local function write_open(instance, steps, timers, name, wake, key, kind, head, accepts, started, due_ms)
  local record = head .. ',"started_ms":' .. whole(started)
  if due_ms then
    local member = timer_member(name, key)
    record = record .. ',"due_ms":' .. whole(due_ms)
    redis.call('ZADD', timers, due_ms, member)
    -- the leader sleeps until the earliest deadline that it knows of
    if redis.call('ZRANGE', timers, 0, 0)[1] == member then redis.call('PUBLISH', wake, '') end
  end
  redis.call('HSET', steps, key, record .. '}', '_open:' .. key, kind .. ' ' .. whole(started) .. ' ' .. accepts)
  local waiting = redis.call('HGET', instance, 'waiting')
  redis.call('HSET', instance, 'waiting', waiting and (waiting .. '\n' .. key) or key)
end

-- returns DONE, key, record, key, record … of the points that are completed already: by a signal that came meanwhile, or by a
-- deadline that is past; and whether any was opened. A point that is open already keeps its first deadline; a repeated call
-- opens none.
local function open_points(instance, steps, timers, name, wake, fired_head, fired_tail, points, repeated)
  local satisfied, has_opened = {DONE}, false
  for at = 1, #points, 7 do
    local key, kind, head, accepts = points[at], points[at + 1], points[at + 2], points[at + 3]
    local after_ms, at_ms = tonumber(points[at + 4]), tonumber(points[at + 5])
    local known = redis.call('HMGET', steps, '_open:' .. key, key)
    if not known[1] then
      local record = known[2]
      if not record and not repeated then
        local now = now_ms()
        local started = now - tonumber(points[at + 6])
        -- rounded up: a timer never fires early
        local due_ms = after_ms and started + math.ceil(after_ms) or at_ms and math.ceil(at_ms)
        if due_ms and due_ms <= now then
          record = timed(fired_head, started, now, fired_tail)
          redis.call('HSET', steps, key, record, '_by:' .. key, 'timer')
        else
          write_open(instance, steps, timers, name, wake, key, kind, head, accepts, started, due_ms)
          has_opened = true
        end
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
local function take_withdrawn(instance, steps, timers, name, count, both, repeated)
  local points, has_withdrawn = {}, false
  for at, each in ipairs(both) do
    if at > count then
      points[at - count] = each
    elseif not repeated and withdraw_point(instance, steps, timers, name, each) then
      has_withdrawn = true
    end
  end
  return points, has_withdrawn
end
