-- reconcile: mend live instances that nobody would ever take or wake, because something of theirs was lost outside of memable.
-- USES  time, state, timers, delivery
-- KEYS  stream     stream  entries that are missing, or were delivered and are held by nobody, are put in afresh
-- KEYS  timers     zset    deadlines that are missing
-- KEYS  found      zset    the index in which they were found, one of the next three
-- KEYS  queued     zset    their places in the listing, as their status says
-- KEYS  running    zset
-- KEYS  suspended  zset
-- KEYS  completed  zset
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- KEYS  instances_and_steps...  hash  entry; a run whose entry is lost is over, and the instance queued
-- ARGV  ids_names_events...
-- RETURNS  id, what, id, what … : `entry`, `timer` or `listing` mended; `gone` from the listing, its hash is lost; `asleep` for ever
-- RETRY  nothing is left to mend
local indexes = {queued = queued, running = running, suspended = suspended, completed = completed, failed = failed,
  cancelled = cancelled}

local delivered = last_delivered(stream)

local function mend_entry(instance, id, status, entry, events)
  if entry then take_from_stream(stream, entry) end
  if status == 'running' then
    queue(instance, stream, id, running, queued, events, drop_lease(instance))
  else
    redis.call('HSET', instance, 'entry', put_in_stream(stream, id))
  end
end

-- whether it was missing
local function mend_timer(name, key, due_ms)
  return due_ms and redis.call('ZADD', timers, 'NX', due_ms, timer_member(name, key)) == 1
end

-- whether a deadline was missing
local function mend_timers(steps, name, waiting, due_ms, ends_ms)
  local is_mended = mend_timer(name, DELAY_KEY, due_ms)
  if mend_timer(name, DEADLINE_KEY, ends_ms) then is_mended = true end
  for key in string.gmatch(waiting, '[^\n]+') do
    local due_ms = string.match(redis.call('HGET', steps, key) or '', '"due_ms":(%d+)}$')
    if mend_timer(name, key, due_ms) then is_mended = true end
  end
  return is_mended
end

local mended = {}
for at = 1, #instances_and_steps, 2 do
  local instance, steps = instances_and_steps[at], instances_and_steps[at + 1]
  local place = (at - 1) / 2 * 3
  local id, name, events = ids_names_events[place + 1], ids_names_events[place + 2], ids_names_events[place + 3]
  local known = redis.call('HMGET', instance, 'status', 'entry', 'waiting', 'created_us', 'due', 'retrying', 'ends_ms')
  local status, entry, waiting, due_ms, retrying = known[1], known[2], known[3], known[5], known[6]
  local function note(what)
    mended[#mended + 1] = id
    mended[#mended + 1] = what
  end
  if not status then
    if redis.call('ZREM', found, id) == 1 then note('gone') end
  else
    if found ~= indexes[status] and redis.call('ZREM', found, id) == 1 then
      redis.call('ZADD', indexes[status], known[4], id)
      note('listing')
    end
    if status == 'queued' or status == 'running' then
      if not (due_ms or retrying and not entry) and not will_be_taken(stream, delivered, entry) then
        mend_entry(instance, id, status, entry, events)
        note('entry')
      end
    elseif status == 'suspended' and not waiting then
      note('asleep')
    end
    if mend_timers(steps, name, (waiting or '') .. '\n' .. (retrying or ''), due_ms, known[7]) then note('timer') end
  end
end
return mended
