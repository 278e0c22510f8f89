-- drop_consumer: remove a worker that is gone from a stream's group, if it holds nothing.
-- KEYS  stream  stream  its consumer group
-- ARGV  worker
-- RETURNS  DONE removed | ALREADY kept: it has pending entries, which deleting it would destroy
-- RETRY  nothing is left to remove: DONE
if redis.call('EXISTS', stream) == 0 then return DONE end
if #redis.call('XPENDING', stream, GROUP, '-', '+', 1, worker) > 0 then return ALREADY end
redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, worker)
return DONE
