-- set_status: say what a running instance is doing.
-- USES  time, state
-- KEYS  instance  hash  progress, message
-- ARGV  lease, progress, events
-- RETURNS  DONE said | LEASE_LOST this run is over
-- RETRY  by `lease`: said again
local known = redis.call('HMGET', instance, 'lease', 'version')
if known[1] ~= lease then return LEASE_LOST end
set_state(instance, known[2], 'running', progress, events, {'progress', progress})
return DONE
