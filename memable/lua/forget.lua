-- forget: remove an instance whose retention is over from the listing.
-- KEYS  instance   hash  expired by now, or invoked again
-- KEYS  expiry     zset  its place goes
-- KEYS  completed  zset  its place in one of these goes
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- ARGV  id, name
-- RETURNS  DONE forgotten | ALREADY alive again
-- RETRY  nothing is left to remove: DONE
local status = redis.call('HGET', instance, 'status')
-- resumed and ended again meanwhile, or not gone yet: Redis removes a key only after the millisecond in which it expires,
-- and an id taken out too early would stay in the listing for ever
if status == 'completed' or status == 'failed' or status == 'cancelled' then return ALREADY end
redis.call('ZREM', expiry, name)
for _, index in ipairs({completed, failed, cancelled}) do redis.call('ZREM', index, id) end
return status and ALREADY or DONE
