-- beat: show that a worker lives, and forget those that have not for long.
-- USES  time
-- KEYS  workers  zset  worker by the time in ms of its last sign
-- ARGV  worker, stale_ms
-- RETURNS  DONE seen
-- RETRY  by `worker`: seen again
redis.call('ZREMRANGEBYSCORE', workers, '-inf', whole(now_ms() - stale_ms))
redis.call('ZADD', workers, whole(now_ms()), worker)
return DONE
