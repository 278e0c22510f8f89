-- tidy: take entries out of a stream that no instance has, or not any more: they count as work, and are none.
-- USES  state
-- KEYS  stream        stream  such entries go
-- KEYS  instances...  hash    the one that each of the entries names: its own is read
-- ARGV  mends, entries...
-- RETURNS  those that were taken out; unless it `mends`, those that are to be
-- RETRY  nothing is left to take out
local strays = {}
for at, entry in ipairs(entries) do
  if redis.call('HGET', instances[at], 'entry') ~= entry and #redis.call('XRANGE', stream, entry, entry) > 0 then
    if mends == '1' then take_from_stream(stream, entry) end
    strays[#strays + 1] = entry
  end
end
return strays
