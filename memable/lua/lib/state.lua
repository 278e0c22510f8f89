-- How an instance changes its state: status, message, version, event; its place in the listing; its stream entry.

-- how it ended (`field`: output or error) is JSON already; an event carries it only while small, since every subscriber gets a copy
local SMALL_END_BYTES = 4096

local function set_state(instance, status, message, events, key, field, ended)
  redis.call('HSET', instance, 'status', status, 'message', message)
  local version = redis.call('HINCRBY', instance, 'version', 1)
  local event = '{"version":' .. version .. ',"status":"' .. status .. '"'
  if message ~= '' then event = event .. ',"message":' .. cjson.encode(message) end
  if key then event = event .. ',"key":' .. cjson.encode(key) end
  if field and #ended <= SMALL_END_BYTES then event = event .. ',"' .. field .. '":' .. ended end
  redis.call('PUBLISH', events, event .. '}')
end

local function move_index(from, to, id, created_us)
  redis.call('ZREM', from, id)
  redis.call('ZADD', to, created_us, id)
end

local function put_in_stream(instance, stream, id)
  local entry = redis.call('XADD', stream, '*', ENTRY_FIELD, id)
  redis.call('HSET', instance, 'entry', entry)
end

-- acknowledged first: an entry that is only deleted stays in the pending list as a ghost
local function take_from_stream(stream, entry)
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end

-- the lease goes, so that the run learns from its next call that it is over; that of a run which ended itself stays as
-- `rested_by`, so that the same call, tried again after a lost reply, learns that it was this run which ended. A run that
-- others ended leaves none: it must not be told that its own park or finish came through
local function drop_lease(instance, ended_itself)
  redis.call('HDEL', instance, 'lease', 'worker', 'control', 'entry', 'news', 'rested_by')
  if ended_itself then redis.call('HSET', instance, 'rested_by', ended_itself) end
end

local function queue(instance, stream, id, from, queued, events)
  put_in_stream(instance, stream, id)
  move_index(from, queued, id, redis.call('HGET', instance, 'created_us'))
  set_state(instance, 'queued', '', events)
end
