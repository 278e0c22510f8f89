-- Redis can lose what it has acknowledged (power loss with appendfsync everysec, failover to a replica), always a last part of
-- its history. A run that went on would leave a hole: a later record without the earlier ones. So it names the last record that
-- it knows of, and is refused when that is gone, although its lease came back with the rest.
local function is_forgotten(steps, known)
  return known ~= '' and redis.call('HEXISTS', steps, known) == 0
end
