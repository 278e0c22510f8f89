-- unlabel: remove an instance whose retention is over from the indexes of its labels.
-- KEYS  instance  hash  expired by now, or another of this id
-- KEYS  expiry    zset  the place of its labels goes
-- KEYS  label_indexes...  zset  its places
-- ARGV  id, place, created_us
-- RETURNS  DONE removed | ALREADY alive again
-- RETRY  nothing is left to remove: DONE
-- resumed and ended again meanwhile, or not gone yet: see forget
if redis.call('HGET', instance, 'created_us') == created_us then return ALREADY end
redis.call('ZREM', expiry, place)
for _, index in ipairs(label_indexes) do
  -- another instance of this id may have the same label
  if tonumber(redis.call('ZSCORE', index, id) or '0') == tonumber(created_us) then redis.call('ZREM', index, id) end
end
return DONE
