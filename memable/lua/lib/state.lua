-- How an instance changes its state: status, message, version, event; its place in the listing; its stream entry.
-- A transition writes the instance's fields with one HSET: each command of a script costs the server 1 to 3 µs, and each that
-- writes has a place of its own in the AOF.

-- how it ended (`field`: output or error) is JSON already; an event carries it only while small, since every subscriber gets a copy
local SMALL_END_BYTES = 4096

-- `version` is the one before; `facts` are further fields to write: field, value, field, value …
local function set_state(instance, version, status, message, events, facts, key, field, ended)
  version = whole(version + 1)
  redis.call('HSET', instance, 'status', status, 'message', message, 'version', version, unpack(facts))
  local event = '{"version":' .. version .. ',"status":"' .. status .. '"'
  if message ~= '' then event = event .. ',"message":' .. cjson.encode(message) end
  if key then event = event .. ',"key":' .. cjson.encode(key) end
  if field and #ended <= SMALL_END_BYTES then event = event .. ',"' .. field .. '":' .. ended end
  redis.call('PUBLISH', events, event .. '}')
end

local function add_facts(facts, ...)
  for _, each in ipairs({...}) do facts[#facts + 1] = each end
end

-- `field` of an instance has keys, one a line
local function add_line(instance, field, key)
  local lines = redis.call('HGET', instance, field)
  redis.call('HSET', instance, field, lines and (lines .. '\n' .. key) or key)
end

local function forget_line(instance, field, key)
  local rest = {}
  for line in string.gmatch(redis.call('HGET', instance, field) or '', '[^\n]+') do
    if line ~= key then rest[#rest + 1] = line end
  end
  if #rest == 0 then
    redis.call('HDEL', instance, field)
  else
    redis.call('HSET', instance, field, table.concat(rest, '\n'))
  end
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
