-- isolate: say whether a run has its worker process for itself, so that its loss tells on nobody else.
-- KEYS  instance  hash  alone
-- ARGV  lease, alone
-- RETURNS  DONE said | LEASE_LOST this run is over
-- RETRY  by `lease`: said again
if redis.call('HGET', instance, 'lease') ~= lease then return LEASE_LOST end
redis.call('HSET', instance, 'alone', alone)
return DONE
