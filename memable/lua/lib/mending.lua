-- What an instance must have, so that somebody takes, wakes or finds it. Each function says whether it was missing; it is there
-- again, unless one only looks.
-- `here`: stream, timers, found, running, queued (see reconcile.lua), and whether it `mends`.

local function mend_entry(here, instance, id, status, entry, events)
  if not here.mends then return end
  if entry then take_from_stream(here.stream, entry) end
  if status == 'running' then
    queue(instance, here.stream, id, here.running, here.queued, events, drop_lease(instance))
  else
    redis.call('HSET', instance, 'entry', put_in_stream(here.stream, id))
  end
end

local function mend_timer(here, name, key, due_ms)
  local member = timer_member(name, key)
  if not due_ms or redis.call('ZSCORE', here.timers, member) then return false end
  if here.mends then redis.call('ZADD', here.timers, due_ms, member) end
  return true
end

-- `lines`: keys of points and back-offs, one a line
local function mend_timers(here, name, steps, lines, due_ms, ends_ms)
  local is_mended = mend_timer(here, name, DELAY_KEY, due_ms)
  if mend_timer(here, name, DEADLINE_KEY, ends_ms) then is_mended = true end
  for key in string.gmatch(lines, '[^\n]+') do
    local due_ms = string.match(redis.call('HGET', steps, key) or '', '"due_ms":(%d+)}$')
    if mend_timer(here, name, key, due_ms) then is_mended = true end
  end
  return is_mended
end

-- it may also stand where it does not belong
local function mend_listing(here, own, id, created_us)
  local is_misplaced = here.found ~= own and redis.call('ZSCORE', here.found, id)
  if not is_misplaced and redis.call('ZSCORE', own, id) then return false end
  if here.mends then
    if is_misplaced then redis.call('ZREM', here.found, id) end
    redis.call('ZADD', own, created_us, id)
  end
  return true
end

-- whether anything is left that could complete one of the points; without lines there is nothing
local function has_open(steps, lines)
  for key in string.gmatch(lines or '', '[^\n]+') do
    if redis.call('HEXISTS', steps, '_open:' .. key) == 1 then return true end
  end
  return false
end

-- which points are open, as the records say
local function mend_points(here, instance, steps)
  local lines, is_mended = {}, false
  for _, field in ipairs(redis.call('HKEYS', steps)) do
    local key = string.match(field, '^_open:(.*)$')
    if key then
      local name = line_field(open_point(steps, key).kind)
      lines[name] = lines[name] and lines[name] .. '\n' .. key or key
    end
  end
  for name, keys in pairs(lines) do
    is_mended = true
    if here.mends then redis.call('HSET', instance, name, keys) end
  end
  return is_mended
end
