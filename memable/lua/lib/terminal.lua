-- The end of an instance, whoever makes it: points, timers, entry and lease go, the outcome stays for the retention.

local function come_to_end(instance, steps, stream, timers, from, final, expiry, id, name, ended, events)
  local known = redis.call('HMGET', instance, 'entry', 'created_us')
  withdraw_all(instance, steps, timers, name)
  if known[1] then take_from_stream(stream, known[1]) end
  drop_lease(instance, ended.by)
  local now = now_ms()
  redis.call('HDEL', instance, 'recoveries', 'failed_keys')
  redis.call('HSET', instance, ended.field, ended.value, 'completed_ms', whole(now))
  if ended.failed_keys ~= '' then redis.call('HSET', instance, 'failed_keys', ended.failed_keys) end
  move_index(from, final, id, known[2])
  local expires_ms = whole(now + ended.retention_ms)
  redis.call('ZADD', expiry, expires_ms, name)
  set_state(instance, ended.status, ended.message, events, nil, ended.field, ended.value)
  redis.call('PEXPIREAT', instance, expires_ms)
  redis.call('PEXPIREAT', steps, expires_ms)
end
