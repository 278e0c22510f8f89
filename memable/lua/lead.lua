-- lead: become or stay the leader of a partition, and learn when its next timer is due.
-- USES  time
-- KEYS  leader  string  the token, with expiry
-- KEYS  timers  zset    read
-- ARGV  token, ttl_ms
-- RETURNS  DONE now in ms, the earliest deadline in ms or nothing | LEASE_LOST another leads
-- RETRY  by `token`: the same
local other = redis.call('GET', leader)
if other and other ~= token then return {LEASE_LOST} end
redis.call('SET', leader, token, 'PX', ttl_ms)
return {DONE, whole(now_ms()), redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]}
