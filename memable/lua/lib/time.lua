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
