-- forget: remove an instance whose retention is over from the listing.
-- USES  time
-- KEYS  instance   hash  expired by now, or invoked again
-- KEYS  expiry     zset  its place goes
-- KEYS  completed  zset  its place in one of these goes
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- ARGV  id, name
-- RETURNS  DONE forgotten | ALREADY alive again
-- RETRY  nothing is left to remove: DONE
local status = redis.call('HGET', instance, 'status')
-- resumed and ended again meanwhile: its time is another
if tonumber(redis.call('ZSCORE', expiry, name) or '0') > now_ms() then return ALREADY end
redis.call('ZREM', expiry, name)
for ended, index in pairs({completed = completed, failed = failed, cancelled = cancelled}) do
  if status ~= ended then redis.call('ZREM', index, id) end
end
return status and ALREADY or DONE
