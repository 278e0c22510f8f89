-- delete: forget an instance that has ended, at once.
-- USES  status, listing
-- KEYS  instance   hash  goes
-- KEYS  steps      hash  goes
-- KEYS  inbox      hash  goes
-- KEYS  expiry     zset  its place goes
-- KEYS  completed  zset  its place in one of these goes
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- ARGV  id, name, life
-- RETURNS  DONE deleted, now or before | BUSY and the status of one that lives
-- RETRY  by `life`, which the client has read before: one of another life is another instance, and this one is gone: DONE
local known = redis.call('HMGET', instance, 'life', 'status')
if known[1] ~= life then return {DONE} end
if not is_terminal(known[2]) then return {BUSY, known[2]} end
redis.call('DEL', instance, steps, inbox)
leave_listing(expiry, name, id, {completed, failed, cancelled})
return {DONE}
