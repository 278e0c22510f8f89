-- Redis can lose what it has acknowledged (power loss with appendfsync everysec, failover to a replica), always a last part of
-- its history. A run that went on would leave a hole: a later record without the earlier ones. So it names the last records that
-- it knows of, one a line, and is refused when one is gone, although its lease came back with the rest.
local function is_forgotten(steps, known)
  for key in string.gmatch(known, '[^\n]+') do
    if redis.call('HEXISTS', steps, key) == 0 then return true end
  end
  return false
end
