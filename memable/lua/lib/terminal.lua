-- The end of an instance, whoever makes it: points, timers, entry and lease go, the outcome stays for the retention.
-- `at`: what the script was given: instance, steps, stream, timers, inbox, expiry, family, bereaved; `from`, `final` (indexes); id,
-- name, events, wake; `parent`, of a child (see family.lua).
-- `known`: what `read_ending` said of the instance.
-- `ended`: status, message, retention_ms; field and value (output or error, if there is one); failed_keys (if any); `by`, the
-- lease of a run that ends itself: any other run is told, so that it stops at once, and from then on is refused; `facts`, further
-- fields of the instance to write.

-- every key of the instance, and what the leader finds when they are gone; `resume` takes it back
local function keep_until(expires_ms, expiry, name, created_us, labels, keys)
  redis.call('ZADD', expiry, expires_ms, name)
  if labels then redis.call('ZADD', expiry, expires_ms, labels_place(name, created_us, labels)) end
  for _, key in ipairs(keys) do redis.call('PEXPIREAT', key, expires_ms) end
end

-- all that its end depends on. The first two tell a run that would end itself whether it may
local function read_ending(instance)
  return redis.call('HMGET', instance, 'lease', 'rested_by', 'entry', 'created_us', 'version', 'control', 'deadline_ms', 'due',
    'inbox', 'labels', 'family', 'life', 'waiting', 'retrying', 'choosing')
end

-- what few have: open points are withdrawn, living children are left to the leader, a parent is told
local function take_leave(at, known, ended, now)
  withdraw_all(at, known[13], known[14], known[15])
  if known[11] then bereave(at, known[12], now) end
  if at.parent then tell_family(at.parent, at.id, ended.status, ended.value or cjson.encode(ended.message)) end
end

local function come_to_end(at, known, ended)
  if known[3] then take_from_stream(at.stream, known[3]) end
  if known[7] or known[8] then
    redis.call('ZREM', at.timers, timer_member(at.name, DEADLINE_KEY), timer_member(at.name, DELAY_KEY))
    redis.call('HDEL', at.instance, 'due', 'ends_ms')
  end
  if known[6] and not ended.by then redis.call('PUBLISH', known[6], OVER .. ' ' .. known[1]) end
  local now = now_ms()
  local facts = drop_lease(at.instance, ended.by, 'recoveries')
  add_facts(facts, 'completed_ms', now, unpack(ended.facts or {}))
  if ended.field then add_facts(facts, ended.field, ended.value) end
  if (ended.failed_keys or '') ~= '' then add_facts(facts, 'failed_keys', ended.failed_keys) end
  move_index(at.from, at.final, at.id, known[4])
  set_state(at.instance, known[5], ended.status, ended.message, at.events, facts, nil, ended.field, ended.value)
  if known[11] or known[13] or known[14] or known[15] or at.parent then take_leave(at, known, ended, now) end
  -- last: without a retention they are gone at once
  local keys = {at.instance, at.steps}
  if known[9] then keys[#keys + 1] = at.inbox end
  if known[11] then keys[#keys + 1] = at.family end
  keep_until(now + ended.retention_ms, at.expiry, at.name, known[4], known[10], keys)
end
