-- lead: become or stay the leader of a partition, and learn when to come back at the latest.
-- USES  time
-- KEYS  leader  string  the token, and `new` behind that of a worker which gives way to one that is not; with expiry
-- KEYS  timers  zset    read
-- KEYS  bereaved  zset  read
-- ARGV  token, ttl_ms, is_new
-- RETURNS  DONE now in ms, the earliest deadline in ms or nothing, whether any life has left living children | LEASE_LOST now in ms, the end in ms of another's lead
-- RETRY  by `token`: the same
local now = now_ms()
local other, new = string.match(redis.call('GET', leader) or '', '^(%S*)(.*)$')
-- one that has just connected may not sweep yet: leading instead of one that may, it would keep the dead's work waiting
if other ~= '' and other ~= token and (new == '' or is_new == '1') then
  return {LEASE_LOST, whole(now), whole(now + redis.call('PTTL', leader) + 1)}
end
redis.call('SET', leader, is_new == '1' and token .. ' new' or token, 'PX', ttl_ms)
return {DONE, whole(now), redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2] or false, redis.call('EXISTS', bereaved)}
