-- claim: take a delivered instance for one run, and read all that the run needs.
-- USES  time, state
-- KEYS  instance  hash    status, lease, worker, control, attempt, started_ms
-- KEYS  steps     hash    read whole
-- KEYS  stream    stream  an entry that is not the instance's is removed
-- KEYS  queued    zset    from
-- KEYS  running   zset    to
-- ARGV  id, entry, lease, worker, control, events
-- RETURNS  DONE life, input, progress, attempt, started_ms, recoveries, steps | STALE a delivery of the past, removed | LEASE_LOST another run has it
-- RETRY  by `lease`: the same answer; after the instance has moved on its entry is another: STALE
local known = redis.call('HMGET', instance, 'entry', 'lease', 'life', 'input', 'progress', 'created_us', 'recoveries')
if known[1] ~= entry then
  take_from_stream(stream, entry)
  return {STALE}
end
if known[2] and known[2] ~= lease then return {LEASE_LOST} end
if not known[2] then
  redis.call('HSET', instance, 'lease', lease, 'worker', worker, 'control', control)
  redis.call('HSETNX', instance, 'started_ms', whole(now_ms()))
  redis.call('HINCRBY', instance, 'attempt', 1)
  move_index(queued, running, id, known[6])
  set_state(instance, 'running', known[5] or '', events)
end
local run = redis.call('HMGET', instance, 'attempt', 'started_ms')
return {DONE, known[3], known[4], known[5] or '', run[1], run[2], known[7] or '0', redis.call('HGETALL', steps)}
