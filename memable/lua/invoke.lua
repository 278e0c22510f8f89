-- invoke: make an instance and queue it, unless its id is taken.
-- USES  time, state
-- KEYS  instance  hash    every field of a new instance
-- KEYS  stream    stream  its entry
-- KEYS  queued    zset    its place in the listing
-- ARGV  id, life, input, digest
-- RETURNS  DONE made, now or by the first try | ALREADY there with the same input | CONFLICT there with another input
-- RETRY  by `life`, made by the client: DONE again
local known = redis.call('HMGET', instance, 'life', 'digest')
if known[1] then
  if known[1] == life then return DONE end
  return known[2] == digest and ALREADY or CONFLICT
end
local created_us = whole(now_us())
redis.call('HSET', instance, 'status', 'queued', 'message', '', 'version', 1, 'life', life, 'input', input, 'digest', digest,
  'created_us', created_us)
put_in_stream(instance, stream, id)
redis.call('ZADD', queued, created_us, id)
return DONE
