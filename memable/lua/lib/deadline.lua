-- The deadline of an instance: `deadline_ms` says for how long it may live, `ends_ms` until when, and a timer ends it then.

-- `at`: timers, name, wake; returns the fields to write
local function start_deadline(at, now, deadline_ms)
  local ends_ms = whole(now + deadline_ms)
  set_timer(at.timers, at.wake, timer_member(at.name, DEADLINE_KEY), ends_ms)
  return {'deadline_ms', deadline_ms, 'ends_ms', ends_ms}
end
