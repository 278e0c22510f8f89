-- copy: read what a fork of an instance begins with, all at one moment.
-- KEYS  instance  hash  read
-- KEYS  steps     hash  read whole
-- KEYS  family    hash  of a parent: read whole
-- RETURNS  DONE life, input, labels, deadline_ms, steps, family | UNKNOWN instance
-- RETRY  changes nothing
local known = redis.call('HMGET', instance, 'life', 'input', 'labels', 'family', 'deadline_ms')
if not known[1] then return {UNKNOWN} end
return {DONE, known[1], known[2], known[3] or '', known[5] or '', redis.call('HGETALL', steps),
  known[4] and redis.call('HGETALL', family) or {}}
