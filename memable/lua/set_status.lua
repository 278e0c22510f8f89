-- set_status: say what a running instance is doing.
-- USES  state
-- KEYS  instance  hash  progress, message
-- ARGV  lease, progress, events
-- RETURNS  DONE said | LEASE_LOST this run is over
-- RETRY  by `lease`: said again
if redis.call('HGET', instance, 'lease') ~= lease then return LEASE_LOST end
redis.call('HSET', instance, 'progress', progress)
set_state(instance, 'running', progress, events)
return DONE
