-- console: take an ended life off the list of those that left living children, once these were cancelled.
-- KEYS  bereaved  zset  its place goes, unless it was made bereaved again
-- KEYS  instance  hash  life
-- KEYS  orphans   hash  the family of a life that is not the instance's any more goes
-- ARGV  member, score, life
-- RETURNS  DONE nothing more to do | ALREADY there again
-- RETRY  nothing is left to remove: DONE
local place = redis.call('ZSCORE', bereaved, member)
-- it may have lived and ended again meanwhile
if place and place ~= score then return ALREADY end
redis.call('ZREM', bereaved, member)
if redis.call('HGET', instance, 'life') ~= life then redis.call('DEL', orphans) end
return DONE
