-- Of the inbox, `seen`: the last signals that earlier lives took, or points that were run again, the latest first, one a line:
-- the key's length (it may have spaces), the key, and the id. All in one field: lives without number may have keys without number.
local MOST_SEEN = 1000

local function seen_line(key, id)
  return #key .. ' ' .. key .. ' ' .. id
end

local function was_seen(inbox, key, id)
  local seen = redis.call('HGET', inbox, 'seen')
  return seen and string.find('\n' .. seen .. '\n', '\n' .. seen_line(key, id) .. '\n', 1, true) ~= nil
end

local function remember_seen(inbox, lines)
  for line in string.gmatch(redis.call('HGET', inbox, 'seen') or '', '[^\n]+') do
    if #lines >= MOST_SEEN then break end
    lines[#lines + 1] = line
  end
  redis.call('HSET', inbox, 'seen', table.concat(lines, '\n'))
end
