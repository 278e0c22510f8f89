-- set_status: say what a running instance is doing.
-- USES  state, turn
-- KEYS  instance  hash  progress, message, said
-- ARGV  lease, turn, progress, events
-- RETURNS  DONE said | LEASE_LOST this run is over
-- RETRY  by `said`, the `turn` of the run's last set_status: DONE, and nothing is said again
local known = redis.call('HMGET', instance, 'lease', 'version', 'said')
if known[1] ~= lease then return LEASE_LOST end
if is_repeated(turn, known[3]) then return DONE end
set_state(instance, known[2], 'running', progress, events, {'progress', progress, 'said', turn})
return DONE
