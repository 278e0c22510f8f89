-- The end of an instance, whoever makes it: points, timers, entry and lease go, the outcome stays for the retention.

local function come_to_end(instance, steps, stream, timers, from, final, expiry, id, name, ended, events)
  local known = redis.call('HMGET', instance, 'entry', 'created_us', 'version', 'waiting')
  withdraw_all(instance, steps, timers, name, known[4])
  if known[1] then take_from_stream(stream, known[1]) end
  local now = now_ms()
  local facts = drop_lease(instance, ended.by, 'recoveries', 'failed_keys')
  add_facts(facts, ended.field, ended.value, 'completed_ms', whole(now))
  if ended.failed_keys ~= '' then add_facts(facts, 'failed_keys', ended.failed_keys) end
  move_index(from, final, id, known[2])
  local expires_ms = whole(now + ended.retention_ms)
  redis.call('ZADD', expiry, expires_ms, name)
  set_state(instance, known[3], ended.status, ended.message, events, facts, nil, ended.field, ended.value)
  redis.call('PEXPIREAT', instance, expires_ms)
  redis.call('PEXPIREAT', steps, expires_ms)
end
