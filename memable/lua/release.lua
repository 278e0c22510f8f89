-- release: hand a run's instance back, to be taken at once by any worker.
-- MOVES  running -> queued
-- USES  state
-- KEYS  instance  hash    status, rested_by, attempt
-- KEYS  stream    stream  a fresh entry in place of the old one
-- KEYS  running   zset    from
-- KEYS  queued    zset    to
-- ARGV  id, lease, entry, has_begun, events
-- RETURNS  DONE handed back | LEASE_LOST this run is over
-- RETRY  by `rested_by`: DONE; once a later run has ended or was lost: LEASE_LOST. The run is over either way
local held = redis.call('HMGET', instance, 'lease', 'rested_by')
if held[1] ~= lease then return held[2] == lease and DONE or LEASE_LOST end
take_from_stream(stream, entry)
-- a run that was handed back before it began is none
if has_begun == '0' then redis.call('HINCRBY', instance, 'attempt', -1) end
queue(instance, stream, id, running, queued, events, drop_lease(instance, lease))
return DONE
