-- A step that failed and is called again much later waits as a point of kind `retry` under its own key: with a retrying record,
-- how often it was called and when it began under `_retry:KEY`, a line in the instance's `retrying`, and a timer. When its time has
-- come the point is open no more, and the record stays: whoever runs the instance calls it again. Of such a point of `points`,
-- `accepts` is `ATTEMPTS AGE_MS LABEL`: how often it was called, since when, and what people read.

local function retry_of(accepts)
  local attempts, age_ms, label = string.match(accepts, '^(%d+) (%d+) (.*)$')
  return {attempts = tonumber(attempts), age_ms = tonumber(age_ms), label = label}
end

-- how often the step was called when it was last to be called again, and when it began; nothing if it never was
local function last_retry(steps, key)
  local line = redis.call('HGET', steps, '_retry:' .. key)
  if not line then return nil end
  local attempts, started_ms = string.match(line, '^(%d+) (%d+)$')
  return {attempts = tonumber(attempts), started_ms = started_ms}
end

-- whether what is recorded of the step is how it failed before, and it has failed once more
local function fails_again(steps, key, kind, accepts)
  local last = kind == 'retry' and last_retry(steps, key)
  return last and last.attempts < retry_of(accepts).attempts
end

-- returns the record, if the step can be called again at once
local function open_retry(here, wake, key, head, accepts, after_ms, elapsed_ms)
  local retry, last, now = retry_of(accepts), last_retry(here.steps, key), now_ms()
  local started_ms = last and last.started_ms or whole(now - retry.age_ms)
  local due_ms = due_at(now - tonumber(elapsed_ms), after_ms)
  local record = head .. ',"started_ms":' .. started_ms .. ',"due_ms":' .. whole(due_ms) .. '}'
  redis.call('HSET', here.steps, key, record, '_retry:' .. key, retry.attempts .. ' ' .. started_ms)
  if due_ms <= now then return record end
  set_timer(here.timers, wake, timer_member(here.name, key), due_ms)
  redis.call('HSET', here.steps, '_open:' .. key, 'retry ' .. started_ms .. ' ' .. accepts)
  note_line(here, 'retrying', key)
end

-- what a run says that waits for nothing else; nothing if it waits for something else, too. (A `first` waits for its members.)
local function waits_for_retries(here, points, point_size)
  local first, first_ms, count = nil, nil, 0
  for at = 1, #points, point_size do
    local kind = points[at + 1]
    if kind == 'retry' then
      local due_ms = tonumber(redis.call('ZSCORE', here.timers, timer_member(here.name, points[at])))
      if not first_ms or due_ms < first_ms then first, first_ms = retry_of(points[at + 3]).label, due_ms end
      count = count + 1
    elseif kind ~= 'choice' then
      return nil
    end
  end
  if count == 0 then return nil end
  local more = count > 1 and ', and ' .. count - 1 .. ' more' or ''
  return first .. ' at ' .. shown_time(first_ms, now_ms()) .. more
end
