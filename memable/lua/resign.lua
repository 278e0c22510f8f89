-- resign: let another worker lead at once.
-- KEYS  leader  string  the token goes
-- ARGV  token, wake
-- RETURNS  DONE no longer leading
-- RETRY  by `token`: nothing to do
if string.match(redis.call('GET', leader) or '', '^%S*') == token then
  redis.call('DEL', leader)
  redis.call('PUBLISH', wake, '')  -- the others look whether there is a leader only now and then
end
return DONE
