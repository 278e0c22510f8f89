-- The beginning of an instance may be delayed: `due` says until when, and a timer queues it then. See `begin`.

-- `at`: timers, name, wake. Returns a message, and the field that says it; nothing, if the time has come already
local function put_off(at, now, after_ms, at_ms)
  local due_ms = due_at(now, after_ms, at_ms)
  if due_ms <= now then return nil end
  set_timer(at.timers, at.wake, timer_member(at.name, DELAY_KEY), due_ms)
  return 'delayed until ' .. shown_time(due_ms, now), 'due', due_ms
end
