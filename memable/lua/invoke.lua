-- invoke: make an instance and queue it, unless its id is taken; a fork begins with records of another.
-- MOVES  new -> queued
-- USES  time, state, timers, clock, delay, listing, deadline
-- KEYS  instance  hash    every field of a new instance
-- KEYS  steps     hash    what is left of an instance whose hash was lost goes; the records of a fork
-- KEYS  inbox     hash    the same
-- KEYS  family    hash    the same; how the children ended that a fork's records are of
-- KEYS  stream    stream  its entry, unless it is delayed
-- KEYS  timers    zset    or its timer; that of its deadline
-- KEYS  queued    zset    its place in the listing
-- KEYS  expiry    zset    the place of a namesake that has expired goes
-- KEYS  completed zset    the same
-- KEYS  failed    zset
-- KEYS  cancelled zset
-- KEYS  label_indexes... zset  its places in those of its labels
-- ARGV  id, name, life, input, labels, after_ms, at_ms, deadline_ms, wake, trace, forked_from, record_words, records_and_ends...
-- RETURNS  DONE made, now or by the first try | ALREADY there with the same input, or the same fork | CONFLICT there with the input that follows: other bytes, perhaps the same value
-- RETRY  by `life`, made by the client: DONE again
local known = redis.call('HMGET', instance, 'life', 'input', 'invoked_by', 'first_input', 'forked_from')
if known[1] then
  -- whatever life it is in now, it was invoked with its first one's
  local invoked_by, first_input = known[3] or known[1], known[4] or known[2]
  if invoked_by == life then return {DONE} end
  if forked_from ~= '' then return {known[5] == forked_from and ALREADY or CONFLICT} end
  if first_input == input then return {ALREADY} end
  return {CONFLICT, first_input}
end
local now = now_us()
local created_us, now = whole(now), math.floor(now / 1000)
local at, message, where, place = {timers = timers, name = name, wake = wake}, '', 'entry', nil
if after_ms ~= '' or at_ms ~= '' then message, where, place = put_off(at, now, after_ms, at_ms) end
if not place then message, where, place = '', 'entry', put_in_stream(stream, id) end
redis.call('HSET', instance, 'status', 'queued', 'message', message, 'version', 1, 'life', life, 'input', input,
  'created_us', created_us, where, place)
-- else the new instance would be handed the old one's records. Not first: a full Redis refuses a script by its first write,
-- unless that is one that frees memory
redis.call('DEL', steps, inbox, family)
-- the leader would find the new instance here when its own time comes, and leave the old place in the listing
leave_listing(expiry, name, id, completed, failed, cancelled)
redis.call('ZADD', queued, created_us, id)
if forked_from ~= '' then
  redis.call('HSET', instance, 'forked_from', forked_from)
  -- in parts: Lua hands no more than some thousand arguments to a command
  local function write(hash, first, last)
    for at = first, last, 1000 do redis.call('HSET', hash, unpack(records_and_ends, at, math.min(at + 999, last))) end
  end
  write(steps, 1, tonumber(record_words))
  write(family, record_words + 1, #records_and_ends)
  if #records_and_ends > tonumber(record_words) then redis.call('HSET', instance, 'family', 1) end
end
if deadline_ms ~= '' then
  redis.call('HSET', instance, unpack(start_deadline(at, now, deadline_ms)))
end
if labels ~= '' then redis.call('HSET', instance, 'labels', labels) end
if trace ~= '' then redis.call('HSET', instance, 'trace', trace) end
for _, index in ipairs(label_indexes) do redis.call('ZADD', index, created_us, id) end
return {DONE}
