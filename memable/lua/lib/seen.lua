-- Of the inbox, `seen`: the last signals that earlier lives took, those of the latest first, one a line: the key's length (it may have spaces),
-- the key, and the id. All in one field: lives without number may have keys without number
local MOST_SEEN = 1000

local function was_seen(inbox, key, id)
  local seen = redis.call('HGET', inbox, 'seen')
  return seen and string.find('\n' .. seen .. '\n', '\n' .. #key .. ' ' .. key .. ' ' .. id .. '\n', 1, true) ~= nil
end

local function keep_seen(instance, inbox, steps)
  local lines = {}
  for _, field in ipairs(redis.call('HKEYS', steps)) do
    local key = string.match(field, '^_by:(.*)$')
    local id = key and string.match(redis.call('HGET', steps, field), '^signal (.*)$')
    if id then lines[#lines + 1] = #key .. ' ' .. key .. ' ' .. id end
  end
  if #lines == 0 then return end
  for line in string.gmatch(redis.call('HGET', inbox, 'seen') or '', '[^\n]+') do
    if #lines >= MOST_SEEN then break end
    lines[#lines + 1] = line
  end
  redis.call('HSET', inbox, 'seen', table.concat(lines, '\n'))
  redis.call('HSET', instance, 'inbox', 1)
end
