-- renew: keep the entries of runs that still hold their instances from looking abandoned.
-- KEYS  stream        stream  the idle time of the entries starts again
-- KEYS  instances...  hash    lease, news
-- ARGV  worker, entries_and_leases...
-- RETURNS  one number per instance: LEASE_LOST, or the count of signals and timers that came while it ran
-- RETRY  changes nothing but idle times
local answers, held = {}, {}
for at, instance in ipairs(instances) do
  local known = redis.call('HMGET', instance, 'lease', 'news')
  -- the token is checked first, so that a worker that was stopped for long cannot steal an entry back
  if known[1] == entries_and_leases[2 * at] then
    held[#held + 1] = entries_and_leases[2 * at - 1]
    answers[at] = tonumber(known[2] or '0')
  else
    answers[at] = LEASE_LOST
  end
end
if #held > 0 then
  held[#held + 1] = 'JUSTID'
  redis.call('XCLAIM', stream, GROUP, worker, 0, unpack(held))
end
return answers
