-- Whether a stream entry will reach a worker, or is held by one.

local function is_after(entry, other)
  local ms, sequence = string.match(entry, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then return tonumber(ms) > tonumber(other_ms) end
  return tonumber(sequence) > tonumber(other_sequence)
end

-- nil if there is no group: it will be made at the beginning of the stream, and deliver everything again
local function last_delivered(stream)
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for at = 1, #group, 2 do facts[group[at]] = group[at + 1] end
    if facts.name == GROUP then return facts['last-delivered-id'] end
  end
end

local function will_be_taken(stream, delivered, entry)
  if not entry or #redis.call('XRANGE', stream, entry, entry) == 0 then return false end
  if not delivered or is_after(entry, delivered) then return true end
  return #redis.call('XPENDING', stream, GROUP, entry, entry, 1) > 0
end
