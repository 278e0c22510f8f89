-- resign: let another worker lead at once.
-- KEYS  leader  string  the token goes
-- ARGV  token
-- RETURNS  DONE no longer leading
-- RETRY  by `token`: nothing to do
if string.match(redis.call('GET', leader) or '', '^%S*') == token then redis.call('DEL', leader) end
return DONE
