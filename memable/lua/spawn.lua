-- spawn: make the next children of a call, if this run still holds the instance, and read how far all of them are.
-- MOVES  new -> queued  the children
-- USES  time, state, timers, deadline, knowledge
-- KEYS  instance  hash    lease, family
-- KEYS  steps     hash    read
-- KEYS  family    hash    counters
-- KEYS  stream    stream  of their workflow: an entry each
-- KEYS  timers  zset    their deadlines
-- KEYS  queued    zset    of their workflow's children: their places in the listing
-- KEYS  children...  hash  every field of a new instance
-- ARGV  lease, known, name, key, workflow, total, first, deadline_ms, wake, trace, ids_lives_inputs...
-- RETURNS  DONE created, ended, failed, first failed, elapsed ms, resumed, rerun | LEASE_LOST this run is over | FORGOTTEN what the run knows is gone | CONFLICT workflow and total: others
-- RETRY  by `_created`: those that were made are not made again, whatever has become of them
if redis.call('HGET', instance, 'lease') ~= lease then return {LEASE_LOST} end
if is_forgotten(steps, known) then return {FORGOTTEN} end
local there = redis.call('HMGET', family, '_workflow:' .. key, '_total:' .. key, '_created:' .. key)
if there[1] and (there[1] ~= workflow or there[2] ~= total) then return {CONFLICT, there[1], there[2]} end
local created, made = tonumber(there[3] or '0'), 0
first = tonumber(first)
if first > created then return {FORGOTTEN} end
local created_us = now_us()
for at, child in ipairs(children) do
  if first + at > created then
    local id, life, input = ids_lives_inputs[3 * at - 2], ids_lives_inputs[3 * at - 1], ids_lives_inputs[3 * at]
    -- in the order of their numbers, also in the listing
    local born_us = whole(created_us + made)
    redis.call('HSET', child, 'status', 'queued', 'message', '', 'version', 1, 'life', life, 'input', input, 'parent', name,
      'created_us', born_us, 'entry', put_in_stream(stream, id))
    redis.call('ZADD', queued, born_us, id)
    if trace ~= '' then redis.call('HSET', child, 'trace', trace) end
    if deadline_ms ~= '' then
      local mortal = {timers = timers, name = workflow .. '/' .. id, wake = wake}
      redis.call('HSET', child, unpack(start_deadline(mortal, math.floor(born_us / 1000), deadline_ms)))
    end
    made = made + 1
  end
end
if made > 0 then
  if created == 0 then
    redis.call('HSET', family, '_workflow:' .. key, workflow, '_total:' .. key, total, '_started:' .. key, whole(now_ms()))
    redis.call('HSET', instance, 'family', 1)
  end
  redis.call('HSET', family, '_created:' .. key, created + made)
  redis.call('HINCRBY', family, '_living', made)
  -- progress: whatever killed the runs before this one did not kill it here
  redis.call('HDEL', instance, 'recoveries', 'alone')
end
local far = redis.call('HMGET', family, '_ended:' .. key, '_failed:' .. key, '_first:' .. key, '_started:' .. key, '_resumed', '_rerun:' .. key)
return {DONE, whole(created + made), far[1] or '0', far[2] or '0', far[3] or '',
  whole(now_ms() - tonumber(far[4] or now_ms())), far[5] or '', far[6] or ''}
