-- resume: run an instance at rest again, without the records of the failure that ended it.
-- USES  time, state
-- KEYS  instance   hash    status; output, error and expiry go
-- KEYS  steps      hash    the records named in failed_keys go, and the expiry
-- KEYS  inbox      hash    its expiry goes
-- KEYS  stream     stream  its entry
-- KEYS  expiry     zset    its place goes
-- KEYS  queued     zset    to
-- KEYS  suspended  zset    from, this or one of the next
-- KEYS  completed  zset
-- KEYS  failed     zset
-- KEYS  cancelled  zset
-- ARGV  id, name, token, events
-- RETURNS  DONE queued, now or by the first try | ALREADY queued or running: joined | UNKNOWN instance
-- RETRY  by `resumed_by`, the tokens of the last 16 resumes: DONE, whatever has become of the instance since
local known = redis.call('HMGET', instance, 'status', 'resumed_by', 'failed_keys')
local from = ({suspended = suspended, completed = completed, failed = failed, cancelled = cancelled})[known[1]]
if not known[1] then return UNKNOWN end
if string.find(known[2] or '', token, 1, true) then return DONE end
if not from then return ALREADY end
for key in string.gmatch(known[3] or '', '[^\n]+') do
  -- with who completed it: a point that opens again would answer every signal as superseded
  redis.call('HDEL', steps, key, '_by:' .. key)
end
redis.call('HDEL', instance, 'output', 'error', 'completed_ms', 'failed_keys', 'recoveries')
redis.call('PERSIST', instance)
redis.call('PERSIST', steps)
redis.call('PERSIST', inbox)
redis.call('ZREM', expiry, name)
-- others may resume before a retry comes. Tokens are of one length, one a line, the newest first
local tokens = known[2] and token .. '\n' .. known[2] or token
queue(instance, stream, id, from, queued, events, {'resumed_by', string.sub(tokens, 1, 16 * (#token + 1) - 1)})
return DONE
