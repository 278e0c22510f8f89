-- permitted: which of some commands the user of this connection may give.
-- ARGV  commands...
-- RETURNS  1 or 0 for each; its words are one a line
-- RETRY  changes nothing
local answers = {}
for at, line in ipairs(commands) do
  local words = {}
  for word in string.gmatch(line, '[^\n]+') do words[#words + 1] = word end
  answers[at] = redis.acl_check_cmd(unpack(words)) and 1 or 0
end
return answers
