-- The children of an instance, as its `family` says: see keys.py for the fields.

-- `accepts` of a point of kind child: how many must have ended, how many were made, and whether one failure is enough
local function is_decided(family, key, accepts)
  local wake_at, _, fail_fast = string.match(accepts, '^(%d+) (%d+) ([01])$')
  local known = redis.call('HMGET', family, '_ended:' .. key, '_failed:' .. key)
  return tonumber(known[1] or '0') >= tonumber(wake_at) or (fail_fast == '1' and (known[2] or '0') ~= '0')
end

-- Redis may have lost what it has acknowledged
local function has_made(family, key, accepts)
  return tonumber(redis.call('HGET', family, '_created:' .. key) or '0') >= tonumber(string.match(accepts, ' (%d+) '))
end

-- of a fork: the children were another's, and those to be made would be taken for them
local function forget_ends(family, key)
  for _, field in ipairs(redis.call('HKEYS', family)) do
    if string.sub(field, 1, #key + 1) == key .. '~' then redis.call('HDEL', family, field) end
  end
end

-- by a resume with this token: its run is to resume the children that failed until now, if it had ended, and all of those keys
local function ask_for_children(family, token, rerun, has_ended)
  redis.call('PERSIST', family)
  local asked = token .. ' ' .. whole(now_ms())
  if has_ended then redis.call('HSET', family, '_resumed', asked) end
  for _, key in ipairs(rerun) do
    if redis.call('HEXISTS', family, '_created:' .. key) == 1 then
      redis.call('HSET', family, '_rerun:' .. key, asked)
    else
      forget_ends(family, key)
    end
  end
end

local function has_living(family)
  return tonumber(redis.call('HGET', family, '_living') or '0') > 0
end

-- a life that comes to an end leaves its living children to the leader, which cancels them
local function bereave(at, life, now)
  if not has_living(at.family) then return end
  redis.call('ZADD', at.bereaved, now, at.name .. '/' .. life)
  redis.call('PUBLISH', at.wake, '')
end

-- … and the next life has a family of its own
local function leave_family(at, orphans, life, now)
  bereave(at, life, now)
  if has_living(at.family) then redis.call('RENAME', at.family, orphans) else redis.call('DEL', at.family) end
end
