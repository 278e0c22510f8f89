-- The end of an instance, whoever makes it: points, timers, entry and lease go, the outcome stays for the retention.
-- `at`: what the script was given: instance, steps, stream, timers, inbox, expiry, family, bereaved; `from`, `final` (indexes); id,
-- name, events, wake; `parent`, of a child (see family.lua).
-- `ended`: status, message, retention_ms; field and value (output or error, if there is one); failed_keys (if any); `by`, the
-- lease of a run that ends itself: any other run is told, so that it stops at once, and from then on is refused; `facts`, further
-- fields of the instance to write.

-- every key of the instance, and what the leader finds when they are gone; `resume` takes it back
local function keep_until(expires_ms, expiry, name, created_us, labels, keys)
  redis.call('ZADD', expiry, expires_ms, name)
  if labels then redis.call('ZADD', expiry, expires_ms, labels_place(name, created_us, labels)) end
  for _, key in ipairs(keys) do redis.call('PEXPIREAT', key, expires_ms) end
end

local function come_to_end(at, ended)
  local known = redis.call('HMGET', at.instance, 'entry', 'created_us', 'version', 'waiting', 'control', 'lease',
    'deadline_ms', 'due', 'inbox', 'retrying', 'labels', 'family', 'life', 'choosing')
  withdraw_all(at, known[4], known[10], known[14])
  if known[1] then take_from_stream(at.stream, known[1]) end
  if known[7] or known[8] then
    redis.call('ZREM', at.timers, timer_member(at.name, DEADLINE_KEY), timer_member(at.name, DELAY_KEY))
  end
  if known[5] and not ended.by then redis.call('PUBLISH', known[5], OVER .. ' ' .. known[6]) end
  local now = now_ms()
  local facts = drop_lease(at.instance, ended.by, 'recoveries', 'failed_keys', 'due', 'ends_ms')
  add_facts(facts, 'completed_ms', whole(now), unpack(ended.facts or {}))
  if ended.field then add_facts(facts, ended.field, ended.value) end
  if (ended.failed_keys or '') ~= '' then add_facts(facts, 'failed_keys', ended.failed_keys) end
  move_index(at.from, at.final, at.id, known[2])
  set_state(at.instance, known[3], ended.status, ended.message, at.events, facts, nil, ended.field, ended.value)
  local keys = {at.instance, at.steps}
  if known[9] then keys[#keys + 1] = at.inbox end
  if known[12] then keys[#keys + 1] = at.family end
  keep_until(whole(now + ended.retention_ms), at.expiry, at.name, known[2], known[11], keys)
  if known[12] then bereave(at, known[13], now) end
  if at.parent then tell_family(at.parent, at.id, ended.status, ended.value or cjson.encode(ended.message)) end
end
