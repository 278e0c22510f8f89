-- Leaving the listing, when the hash of an instance that has ended is gone, or goes.

-- `ended`: the indexes of those that have ended
local function leave_listing(expiry, name, id, ended)
  if redis.call('ZREM', expiry, name) == 0 then return end
  for _, index in ipairs(ended) do redis.call('ZREM', index, id) end
end
