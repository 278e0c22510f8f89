-- Of the inbox, `seen`: the last signals that earlier lives took, those of the latest first, one a line: the key's length (it may have spaces),
-- the key, and the id. All in one field: lives without number may have keys without number
local function was_seen(inbox, key, id)
  local seen = redis.call('HGET', inbox, 'seen')
  return seen and string.find('\n' .. seen .. '\n', '\n' .. #key .. ' ' .. key .. ' ' .. id .. '\n', 1, true) ~= nil
end
