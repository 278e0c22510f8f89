-- How an instance changes its state: status, message, version, event; its place in the listing; its stream entry.
-- A transition writes the instance's fields with one HSET: each command of a script costs the server 1 to 3 µs, and each that
-- writes has a place of its own in the AOF.

-- how it ended (`field`: output or error) is JSON already; an event carries it only while small, since every subscriber gets a copy
local SMALL_END_BYTES = 4096

-- `version` is the one before; `facts` are further fields to write: field, value, field, value …
local function set_state(instance, version, status, message, events, facts, key, field, ended)
  version = version + 1
  redis.call('HSET', instance, 'status', status, 'message', message, 'version', version, unpack(facts))
  local event = string.format('{"version":%d,"status":"%s"', version, status)
  if message ~= '' then event = event .. ',"message":' .. cjson.encode(message) end
  if key then event = event .. ',"key":' .. cjson.encode(key) end
  if field and #ended <= SMALL_END_BYTES then event = event .. ',"' .. field .. '":' .. ended end
  redis.call('PUBLISH', events, event .. '}')
end

local function add_facts(facts, ...)
  local count = #facts
  for at = 1, select('#', ...) do facts[count + at] = select(at, ...) end
end

local function move_index(from, to, id, created_us)
  redis.call('ZREM', from, id)
  redis.call('ZADD', to, created_us, id)
end

-- the member of `expiry` that says, when the hash is gone, in which indexes of labels its instance stands
local function labels_place(name, created_us, labels)
  return name .. '\n' .. created_us .. '\n' .. labels
end

-- returns the new entry, which the instance has to name
local function put_in_stream(stream, id)
  return redis.call('XADD', stream, '*', ENTRY_FIELD, id)
end

-- acknowledged first: an entry that is only deleted stays in the pending list as a ghost
local function take_from_stream(stream, entry)
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end

-- the lease goes, so that the run learns from its next call that it is over; that of a run which ended itself stays as
-- `rested_by`, so that the same call, tried again after a lost reply, learns that it was this run which ended. A run that
-- others ended leaves none: it must not be told that its own park or finish came through. More fields may go with it; returns
-- the facts to write
local function drop_lease(instance, ended_itself, ...)
  redis.call('HDEL', instance, 'lease', 'worker', 'control', 'entry', 'news', 'alone', 'turn', 'said', 'rested_by', ...)
  return ended_itself and {'rested_by', ended_itself} or {}
end

local function queue(instance, stream, id, from, queued, events, facts)
  local known = redis.call('HMGET', instance, 'created_us', 'version')
  add_facts(facts, 'entry', put_in_stream(stream, id))
  move_index(from, queued, id, known[1])
  set_state(instance, known[2], 'queued', '', events, facts)
end

-- after a point was completed: an instance that waits without a stream entry is queued, a running one is told
local function deliver(instance, stream, id, name, suspended, queued, events)
  local at = redis.call('HMGET', instance, 'status', 'control', 'entry')
  if not at[3] then
    queue(instance, stream, id, at[1] == 'suspended' and suspended or queued, queued, events, {})
  elseif at[2] then
    redis.call('HINCRBY', instance, 'news', 1)
    redis.call('PUBLISH', at[2], NEWS .. ' ' .. name)
  end
end
