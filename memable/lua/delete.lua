-- delete: forget an instance that has ended, at once.
-- MOVES  completed | failed | cancelled -> gone
-- USES  time, state, status, children, listing
-- KEYS  instance   hash  goes
-- KEYS  steps      hash  goes
-- KEYS  inbox      hash  goes
-- KEYS  family     hash  goes
-- KEYS  orphans    hash  or is kept here, for the leader to cancel its living children
-- KEYS  bereaved   zset  of which it learns here
-- KEYS  expiry     zset  its place goes
-- KEYS  completed  zset  its place in one of these goes
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- KEYS  label_indexes...  zset  its places in those of its labels
-- ARGV  id, name, invoked_as, life, wake
-- RETURNS  DONE deleted, now or before | BUSY and the status of one that lives | STALE it has gone on in another life: read it again
-- RETRY  by `invoked_as`, the life of its invoke, which the client has read before: with another, it is another instance: DONE
local known = redis.call('HMGET', instance, 'life', 'status', 'created_us', 'labels', 'invoked_by')
if (known[5] or known[1]) ~= invoked_as then return {DONE} end
if not is_terminal(known[2]) then return {BUSY, known[2]} end
-- the living children of that life would be lost to the leader
if known[1] ~= life then return {STALE} end
redis.call('DEL', instance, steps, inbox)
-- children that were resumed since it ended
leave_family({family = family, bereaved = bereaved, name = name, wake = wake}, orphans, life, now_ms())
leave_listing(expiry, name, id, completed, failed, cancelled)
for _, index in ipairs(label_indexes) do redis.call('ZREM', index, id) end
if known[4] then redis.call('ZREM', expiry, labels_place(name, known[3], known[4])) end
return {DONE}
