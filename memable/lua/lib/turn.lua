-- Numbered calls: those of a run that would do something else when they are carried out once more. It makes one of a kind at a
-- time, so that one whose number is not above `last`, that of the last which changed something, is that one made again, or comes
-- late and nobody listens: it must not take back what was done since.
local function is_repeated(turn, last)
  return tonumber(turn) <= tonumber(last or '0')
end
