-- What a status means.

-- whether it is over: nothing happens to it any more, unless it is resumed
local function is_terminal(status)
  return status == 'completed' or status == 'failed' or status == 'cancelled'
end
