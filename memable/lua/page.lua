-- page: what stands first in some indexes, from a creation time downwards, all at one moment.
-- KEYS  indexes...  zset  read
-- ARGV  newest_us, count
-- RETURNS  for each index: id, created_us, id, created_us …
-- RETRY  changes nothing
-- one moment, since an instance that moves from one index to another between two reads would be in neither
local pages = {}
for at, index in ipairs(indexes) do
  pages[at] = redis.call('ZRANGE', index, newest_us, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES')
end
return pages
