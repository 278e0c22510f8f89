-- resume: run an instance at rest again, without the records of the failure that ended it, and without those named in `rerun`.
-- MOVES  suspended | completed | failed | cancelled -> queued
-- USES  time, state, timers, lines, points, seen, tokens, children, family, deadline
-- KEYS  instance   hash    status; output, error and expiry go
-- KEYS  steps      hash    the records named in failed_keys and rerun go, and the expiry
-- KEYS  inbox      hash    its expiry goes; it gets the ids of the signals that are dropped
-- KEYS  stream     stream  its entry
-- KEYS  timers     zset    those of open points named in rerun go; its deadline starts again if it had ended
-- KEYS  expiry     zset    its place goes
-- KEYS  queued     zset    to
-- KEYS  suspended  zset    from, this or one of the next
-- KEYS  completed  zset
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- KEYS  family     hash    of a parent: its run is to resume children, and the expiry goes
-- KEYS  parent...  hash    of a child, its parent's: instance, steps, inbox, family, stream, suspended, queued
-- ARGV  id, name, token, wake, events, parent_id, parent_name, parent_events, parent_lease, asked_ms, rerun...
-- RETURNS  DONE queued, now or by the first try | ALREADY joined | BUSY status | NO_RECORD keys in rerun that have none | UNKNOWN | LEASE_LOST the parent's run is over | STALE not its parent
-- RETRY  by `resumed_by`, the tokens of the last 16 resumes: DONE, whatever has become of the instance since
local known = redis.call('HMGET', instance, 'status', 'resumed_by', 'failed_keys', 'created_us', 'labels', 'parent', 'family',
  'deadline_ms', 'completed_ms')
local from = ({suspended = suspended, completed = completed, failed = failed, cancelled = cancelled})[known[1]]
if not known[1] then return {UNKNOWN} end
if (known[6] or '') ~= parent_name then return {STALE} end
local kin = parent_of(parent, timers, parent_id, parent_name, parent_events)
if parent_lease ~= '' and redis.call('HGET', kin.instance, 'lease') ~= parent_lease then return {LEASE_LOST} end
if knows_token(known[2], token) then return {DONE} end
-- a child that has ended since its parent was resumed: it is to be resumed by the next
if asked_ms ~= '' and tonumber(known[9] or '0') > tonumber(asked_ms) then return {ALREADY} end
if not from then
  if #rerun > 0 then return {BUSY, known[1]} end
  return {ALREADY}
end
local missing = {NO_RECORD}
for _, key in ipairs(rerun) do
  if redis.call('HEXISTS', steps, key) == 0 then missing[#missing + 1] = key end
end
if #missing > 1 then return missing end

local here = {instance = instance, steps = steps, timers = timers, name = name}
local seen = {}
local function drop(key)
  withdraw_point(here, key)
  -- a retry of the signal, with a point that waits for another, would be taken for that
  local signal_id = string.match(redis.call('HGET', steps, '_by:' .. key) or '', '^signal (.*)$')
  if signal_id then seen[#seen + 1] = seen_line(key, signal_id) end
  -- with who completed it: a point that opens again would answer every signal as superseded
  redis.call('HDEL', steps, key, '_by:' .. key, '_retry:' .. key)
end

for key in string.gmatch(known[3] or '', '[^\n]+') do drop(key) end
local dropped = {}
for _, key in ipairs(rerun) do
  drop(key)
  dropped['choice ' .. key] = true
end
-- who has lost in one of these is waited for again
local fields = #rerun > 0 and redis.call('HGETALL', steps) or {}
for at = 1, #fields, 2 do
  if dropped[fields[at + 1]] then redis.call('HDEL', steps, fields[at]) end
end
if #seen > 0 then
  remember_seen(inbox, seen)
  redis.call('HSET', instance, 'inbox', 1)
end
redis.call('HDEL', instance, 'output', 'error', 'completed_ms', 'failed_keys', 'recoveries')
redis.call('PERSIST', instance)
redis.call('PERSIST', steps)
redis.call('PERSIST', inbox)
if known[7] then ask_for_children(family, token, rerun, from ~= suspended) end
if kin and from ~= suspended then take_back(kin, id) end
redis.call('ZREM', expiry, name)
if known[5] then redis.call('ZREM', expiry, labels_place(name, known[4], known[5])) end
local facts = {'resumed_by', with_token(known[2], token)}
if known[8] and from ~= suspended then
  add_facts(facts, unpack(start_deadline({timers = timers, name = name, wake = wake}, now_ms(), known[8])))
end
queue(instance, stream, id, from, queued, events, facts)
return {DONE}
