-- resign: let another worker lead at once.
-- KEYS  leader  string  the token goes
-- ARGV  token
-- RETURNS  DONE no longer leading
-- RETRY  by `token`: nothing to do
if redis.call('GET', leader) == token then redis.call('DEL', leader) end
return DONE
