-- A child and its parent. `parent`: what a script of a child was given of its parent, or nil.

local function parent_of(keys, timers, id, name, events)
  if #keys == 0 then return nil end
  return {
    instance = keys[1], steps = keys[2], inbox = keys[3], family = keys[4], stream = keys[5], suspended = keys[6],
    queued = keys[7], timers = timers, id = id, name = name, events = events,
  }
end

-- whether the life of the parent that has made this child is over
local function is_over(parent, id)
  local known = redis.call('HMGET', parent.instance, 'life', 'status')
  return known[1] ~= string.match(id, '~([^~]*)~[^~]*~%d+$') or is_terminal(known[2])
end

-- nil unless the parent is in the life that has made this child, and still knows of it
local function place_in_family(parent, id)
  local life, key, number = string.match(id, '~([^~]*)~([^~]*)~(%d+)$')
  if redis.call('HGET', parent.instance, 'life') ~= life then return nil end
  if redis.call('HEXISTS', parent.family, '_created:' .. key) == 0 then return nil end
  return key, number
end

-- the first end of a child counts, until a resume takes it back. The parent is woken only when something is decided: it writes
-- the record itself
local function tell_family(parent, id, status, json)
  local key, number = place_in_family(parent, id)
  if not key or redis.call('HSETNX', parent.family, key .. '~' .. number, status .. ' ' .. json) == 0 then return end
  redis.call('HINCRBY', parent.family, '_living', -1)
  redis.call('HINCRBY', parent.family, '_ended:' .. key, 1)
  if status ~= 'completed' then
    redis.call('HINCRBY', parent.family, '_failed:' .. key, 1)
    redis.call('HSETNX', parent.family, '_first:' .. key, number)
  end
  local point = open_point(parent.steps, key)
  if not point or point.kind ~= 'child' then return end
  if not is_decided(parent.family, key, point.accepts) then return end
  withdraw_point(parent, key)
  deliver(parent.instance, parent.stream, parent.id, parent.name, parent.suspended, parent.queued, parent.events)
end

-- before a child is resumed. What the parent has recorded stays: its replays read it here
local function take_back(parent, id)
  local key, number = place_in_family(parent, id)
  if not key then return end
  if redis.call('HEXISTS', parent.steps, key) == 1 and not open_point(parent.steps, key) then return end
  local said = redis.call('HGET', parent.family, key .. '~' .. number)
  if not said then return end
  redis.call('HDEL', parent.family, key .. '~' .. number)
  redis.call('HINCRBY', parent.family, '_living', 1)
  redis.call('HINCRBY', parent.family, '_ended:' .. key, -1)
  if string.match(said, '^%S+') ~= 'completed' then
    redis.call('HINCRBY', parent.family, '_failed:' .. key, -1)
    if redis.call('HGET', parent.family, '_first:' .. key) == number then
      redis.call('HDEL', parent.family, '_first:' .. key)
    end
  end
end
