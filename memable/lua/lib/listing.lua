-- Leaving the listing, when the hash of an instance that has ended is gone, or goes.

-- `...`: the indexes of those that have ended
local function leave_listing(expiry, name, id, ...)
  if redis.call('ZREM', expiry, name) == 0 then return end
  for _, index in ipairs({...}) do redis.call('ZREM', index, id) end
end
