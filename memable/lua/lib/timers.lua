-- Timers: `WF/ID/KEY` by deadline. One stays there until the script that does what is due removes it.

local function timer_member(name, key)
  return name .. '/' .. key
end

-- from a duration or a time of ours, either of them empty; rounded up, so that nothing comes early
local function due_at(started_ms, after_ms, at_ms)
  after_ms, at_ms = tonumber(after_ms), tonumber(at_ms)
  return after_ms and started_ms + math.ceil(after_ms) or at_ms and math.ceil(at_ms)
end

local function set_timer(timers, wake, member, due_ms)
  redis.call('ZADD', timers, due_ms, member)
  -- the leader sleeps until the earliest deadline that it knows of
  if redis.call('ZRANGE', timers, 0, 0)[1] == member then redis.call('PUBLISH', wake, '') end
end
