-- Completing points. A `first` waits for its members, and is decided by whatever completes one of them.
-- `members`: the head of the record that chooses one; and three lines each: kind, key, tail of that record.

-- chooses, and withdraws the others: a signal to one is answered as to a point that is completed, and one that was kept goes.
-- The record; nothing, if `winner` is not among the members
local function choose_member(here, key, started_ms, members, winner)
  local head, lines = string.match(members, '^([^\n]*)\n(.*)$')
  local record
  for _, member, tail in string.gmatch(lines, '([^\n]*)\n([^\n]*)\n([^\n]*)\n') do
    if member == winner then record = timed(head, started_ms, exact_ms(), tail) end
  end
  if not record then return nil end
  if redis.call('HDEL', here.steps, '_open:' .. key) == 1 then close_point(here, key, 'choice') end
  redis.call('HSET', here.steps, key, record)
  local losers = {}
  for _, member in string.gmatch(lines, '([^\n]*)\n([^\n]*)\n[^\n]*\n') do
    if member ~= winner then losers[#losers + 1] = member end
  end
  withdraw_points(here, losers)
  for kind, member in string.gmatch(lines, '([^\n]*)\n([^\n]*)\n[^\n]*\n') do
    if member ~= winner then
      redis.call('HDEL', here.inbox, 'signal:' .. member)
      -- a step that was to be called again is not
      if redis.call('HDEL', here.steps, '_retry:' .. member) == 1 then redis.call('HDEL', here.steps, member) end
      if TAKES_SIGNALS[kind] and redis.call('HEXISTS', here.steps, member) == 0 then
        redis.call('HSET', here.steps, '_by:' .. member, 'choice ' .. key)
      end
    end
  end
  return record
end

-- after `key` was completed: the `first` that it is a member of, if any, is decided
local function decide(here, choice, key)
  local open = choice ~= '' and open_point(here.steps, choice)
  if open and open.kind == 'choice' then choose_member(here, choice, open.started_ms, open.accepts, key) end
end

-- whoever completes an open point comes here: a signal, a message, a deadline
local function complete_point(here, key, point, by, head, tail)
  redis.call('HDEL', here.steps, '_open:' .. key)
  redis.call('HSET', here.steps, key, timed(head, point.started_ms, exact_ms(), tail), '_by:' .. key, by)
  close_point(here, key, point.kind)
  decide(here, point.choice, key)
end
