-- retain: let an instance that has ended expire, if nothing would ever remove it.
-- USES  time, state, status, terminal
-- KEYS  instance  hash  status; expires, with the next three
-- KEYS  steps     hash
-- KEYS  inbox     hash
-- KEYS  family    hash
-- KEYS  expiry    zset  when
-- ARGV  name, retention_ms, mends
-- RETURNS  DONE it will; unless it `mends`, it is to be told so | ALREADY it does, or it lives, or is gone
-- RETRY  it expires now: ALREADY
local known = redis.call('HMGET', instance, 'status', 'created_us', 'labels')
if not is_terminal(known[1]) then return ALREADY end
if redis.call('PTTL', instance) >= 0 and redis.call('ZSCORE', expiry, name) then return ALREADY end
if mends == '1' then
  keep_until(now_ms() + retention_ms, expiry, name, known[2], known[3], {instance, steps, inbox, family})
end
return DONE
