-- reconcile: mend instances that nobody would ever take, wake or find, because something of theirs was lost outside of memable.
-- MOVES  running -> queued
-- USES  state, timers, points, delivery, mending
-- KEYS  stream     stream  entries that are missing, or were delivered and are held by nobody, are put in afresh
-- KEYS  timers     zset    deadlines that are missing
-- KEYS  found      zset    the index in which they were looked for, one of the next six
-- KEYS  queued     zset    their places in the listing, as their status says
-- KEYS  running    zset
-- KEYS  suspended  zset
-- KEYS  completed  zset
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- KEYS  instances_and_steps...  hash  entry; a run whose entry or lease is lost is over, and the instance queued
-- ARGV  mends, ids_names_events...
-- RETURNS  id, what, id, what … : `entry`, `lease`, `timer`, `points` or `listing` mended; `gone` from the listing, its hash is lost; `asleep` or `forgetful` for ever. Unless it `mends`: the same
-- RETRY  nothing is left to mend
local indexes = {queued = queued, running = running, suspended = suspended, completed = completed, failed = failed,
  cancelled = cancelled}
local here = {stream = stream, timers = timers, found = found, running = running, queued = queued, mends = mends == '1'}
local delivered = last_delivered(stream)

local mended = {}
for at = 1, #instances_and_steps, 2 do
  local instance, steps = instances_and_steps[at], instances_and_steps[at + 1]
  local place = (at - 1) / 2 * 3
  local id, name, events = ids_names_events[place + 1], ids_names_events[place + 2], ids_names_events[place + 3]
  local known = redis.call('HMGET', instance, 'status', 'entry', 'waiting', 'created_us', 'due', 'retrying', 'ends_ms', 'lease')
  local status, entry, waiting, due_ms, retrying = known[1], known[2], known[3], known[5], known[6]
  local function note(what)
    mended[#mended + 1] = id
    mended[#mended + 1] = what
  end
  if not status then
    if redis.call('ZSCORE', found, id) then
      if here.mends then redis.call('ZREM', found, id) end
      note('gone')
    end
  else
    if mend_listing(here, indexes[status], id, known[4]) then note('listing') end
    if status == 'queued' or status == 'running' then
      local is_unled = status == 'running' and not known[8]
      if is_unled or not (due_ms or not entry and has_open(steps, retrying) or will_be_taken(stream, delivered, entry)) then
        mend_entry(here, instance, id, status, entry, events)
        note(is_unled and 'lease' or 'entry')
      end
    elseif status == 'suspended' and not waiting then
      note(mend_points(here, instance, steps) and 'points' or 'asleep')
    elseif status == 'suspended' and not has_open(steps, waiting) then
      note('forgetful')
    end
    if mend_timers(here, name, steps, (waiting or '') .. '\n' .. (retrying or ''), due_ms, known[7]) then note('timer') end
  end
end
return mended
