-- Redis's clock: no worker's clock decides anything that is stored.
local function now_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

local function now_ms()
  return math.floor(now_us() / 1000)
end

-- to put in order what takes less than a millisecond
local function exact_ms()
  return now_us() / 1000
end

-- tostring() would round a time in microseconds to 14 digits
local function whole(number)
  return string.format('%.0f', number)
end

-- there may be very many records: a duration is shorter than a second time. It is exact: of calls that were made one after the other
-- in the same millisecond only their ends tell the order
local function timed(head, started_ms, completed_ms, tail)
  return head .. string.format(',"started_ms":%.0f,"took_ms":%.3f', started_ms, completed_ms - started_ms) .. tail
end

-- head and tail again. A head that says `early` will be given that once more
local function untimed(record)
  local from, to = string.find(record, ',"started_ms":%d+,"took_ms":[%d.]+')
  return (string.gsub(string.sub(record, 1, from - 1), ',"early":true$', '')), string.sub(record, to + 1)
end
