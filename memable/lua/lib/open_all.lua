-- Opening many points, and withdrawing others.

-- not a member of a `first` that was decided by another
local function may_open(here, choice)
  return choice == '' or redis.call('HEXISTS', here.steps, '_open:' .. choice) == 1
end

-- of children: without a record, which only the run can write. Whether they are decided; nil: those that the run has made are gone
local function are_decided(here, key, line, waits_for)
  if waits_for == '-' then waits_for = line and read_open(line).accepts or '0 0 0' end
  if not has_made(here.family, key, waits_for) then return nil end
  return is_decided(here.family, key, waits_for)
end

-- returns DONE, key, record, key, record … of the points that are completed already: by a signal or a message that came
-- meanwhile or before, by a deadline that is past, by a member that was; of children that are decided the record is empty. And
-- whether any point was changed: one that is open already keeps its first deadline; a repeated call opens none. nil: children
-- that the run has made are gone.
local function open_points(here, wake, points, repeated)
  local satisfied, has_changed, choices = {DONE}, false, {}
  local function satisfy(key, record)
    satisfied[#satisfied + 1] = key
    satisfied[#satisfied + 1] = record
  end
  for at = 1, #points, POINT_SIZE do
    local key, kind, accepts, choice = points[at], points[at + 1], points[at + 3], points[at + 4]
    local known = redis.call('HMGET', here.steps, '_open:' .. key, key, '_by:' .. key)
    local decided = false
    if kind == 'child' and (known[1] or not known[2]) then
      decided = are_decided(here, key, known[1], accepts)
      if decided == nil then return nil end
    end
    if decided then
      has_changed = withdraw_point(here, key) or has_changed
      satisfy(key, '')
    elseif known[1] then
      if not repeated and is_regrouped(here, key, known[1], accepts, choice) then has_changed = true end
    elseif known[2] and (repeated or not fails_again(here.steps, key, kind, accepts)) then
      if kind ~= 'choice' then satisfy(key, known[2]) end
    elseif not repeated and may_open(here, choice) then
      if known[3] then redis.call('HDEL', here.steps, '_by:' .. key) end  -- it has lost, and is waited for all the same
      local record = open_or_complete(here, wake, unpack(points, at, at + POINT_SIZE - 1))
      if record then satisfy(key, record) else has_changed = true end
    end
    if kind == 'choice' then choices[#choices + 1] = key end
  end
  write_lines(here)
  for _, key in ipairs(choices) do
    if redis.call('HEXISTS', here.steps, '_open:' .. key) == 0 then
      local record = redis.call('HGET', here.steps, key)
      if record then satisfy(key, record) end
    end
  end
  return satisfied, has_changed
end

-- the key of the first point that somebody can complete
local function shown_point(points)
  for at = 1, #points, POINT_SIZE do
    if points[at + 1] ~= 'choice' then return points[at] end
  end
end

-- `open` and `park` get one list: first the keys to withdraw, then the points; returns the latter, and whether any was
-- withdrawn. A repeated call withdraws none.
local function take_withdrawn(here, count, both, repeated)
  local points, withdrawn = {}, {}
  for at, each in ipairs(both) do
    if at > count then points[at - count] = each else withdrawn[at] = each end
  end
  return points, not repeated and withdraw_points(here, withdrawn)
end
