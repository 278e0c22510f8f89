-- Fields of an instance that have keys, one a line: of its open points. What is opened is noted, and written all at once, as what is
-- withdrawn is removed all at once: an instance may have thousands, and to write all of them for each would keep the server from its
-- work for seconds.

local function add_lines(instance, field, keys)
  local lines = redis.call('HGET', instance, field)
  if lines then table.insert(keys, 1, lines) end
  redis.call('HSET', instance, field, table.concat(keys, '\n'))
end

-- `is_gone`: which, as a set
local function forget_lines(instance, field, is_gone)
  local rest = {}
  for line in string.gmatch(redis.call('HGET', instance, field) or '', '[^\n]+') do
    if not is_gone[line] then rest[#rest + 1] = line end
  end
  if #rest == 0 then
    redis.call('HDEL', instance, field)
  else
    redis.call('HSET', instance, field, table.concat(rest, '\n'))
  end
end

local function note_line(here, field, key)
  here.lines = here.lines or {}
  here.lines[field] = here.lines[field] or {}
  table.insert(here.lines[field], key)
end

local function write_lines(here)
  for field, keys in pairs(here.lines or {}) do add_lines(here.instance, field, keys) end
  here.lines = nil
end
