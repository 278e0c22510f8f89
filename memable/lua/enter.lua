-- enter: agree on the layout version and the number of partitions of a namespace.
-- KEYS  meta  hash  layout, partitions
-- ARGV  layout, partitions
-- RETURNS  layout and partitions of the namespace, written now or long ago
-- RETRY  nothing changes after the first time
-- a user that may only read enters a namespace that is there
local known = redis.call('HMGET', meta, 'layout', 'partitions')
if known[1] and known[2] then return known end
redis.call('HSETNX', meta, 'layout', layout)
redis.call('HSETNX', meta, 'partitions', partitions)
return redis.call('HMGET', meta, 'layout', 'partitions')
