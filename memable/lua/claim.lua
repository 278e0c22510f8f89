-- claim: take a delivered instance for one run, and read all that the run needs.
-- MOVES  queued -> running
-- USES  time, state
-- KEYS  instance  hash    status, lease, worker, control, attempt, started_ms
-- KEYS  steps     hash    read whole
-- KEYS  stream    stream  the entry's idle time starts again; one that is not the instance's is removed
-- KEYS  queued    zset    from
-- KEYS  running   zset    to
-- ARGV  id, entry, lease, worker, control, delayed_ms, events
-- RETURNS  DONE life, input, progress, attempt, started_ms, recoveries, parent, trace, now in ms, steps | STALE a delivery of the past, removed | LEASE_LOST another run has it
-- RETRY  by `lease`: the same answer, at another time; after the instance has moved on its entry is another: STALE
local known = redis.call('HMGET', instance, 'entry', 'lease', 'life', 'input', 'progress', 'created_us', 'recoveries',
  'version', 'attempt', 'started_ms', 'parent', 'trace')
if known[1] ~= entry then
  take_from_stream(stream, entry)
  return {STALE}
end
if known[2] and known[2] ~= lease then return {LEASE_LOST} end
-- a delivery may have waited in a worker that was stopped: idle for a lease already, it would be recovered under the new run
if #redis.call('XPENDING', stream, GROUP, 'IDLE', delayed_ms, entry, entry, 1) > 0 then
  redis.call('XCLAIM', stream, GROUP, worker, 0, entry, 'JUSTID')
end
local now = whole(now_ms())
local attempt, started_ms = known[9] or '0', known[10] or now
if not known[2] then
  attempt = tostring(attempt + 1)
  move_index(queued, running, id, known[6])
  set_state(instance, known[8], 'running', known[5] or '', events,
    {'lease', lease, 'worker', worker, 'control', control, 'attempt', attempt, 'started_ms', started_ms})
end
return {DONE, known[3], known[4], known[5] or '', attempt, started_ms, known[7] or '0', known[11] or '', known[12] or '', now,
  redis.call('HGETALL', steps)}
