-- Marks of the calls that had their effect, made by their callers: a retry must find its own also when others have called since.
-- They are of one length, one a line, the newest first.
local TOKENS_KEPT = 16

local function knows_token(tokens, token)
  return string.find(tokens or '', token, 1, true) ~= nil
end

local function with_token(tokens, token)
  return string.sub(tokens and token .. '\n' .. tokens or token, 1, TOKENS_KEPT * (#token + 1) - 1)
end
