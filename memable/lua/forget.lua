-- forget: remove an instance whose retention is over from the listing.
-- USES  status, listing
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
if is_terminal(status) then return ALREADY end
leave_listing(expiry, name, id, completed, failed, cancelled)
return status and ALREADY or DONE
