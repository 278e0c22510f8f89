-- A time as people read it, in UTC: 12:00:05, with the date in front if that is not today's.

local DAY_MS, LAST_MS = 86400000, 253402300799999

local function shown_time(at_ms, now)
  if at_ms > LAST_MS then return 'a time after the year 9999' end
  local days, seconds = math.floor(at_ms / DAY_MS), math.floor(at_ms / 1000) % 86400
  local time = string.format('%02d:%02d:%02d', math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60)
  if days == math.floor(now / DAY_MS) then return time end
  -- counted in years that begin with March, so that a leap day is the last of its year; 400 of them have 146,097 days
  days = days + 719468
  local era = math.floor(days / 146097)
  local of_era = days % 146097
  local leap_days = math.floor(of_era / 1460) - math.floor(of_era / 36524) + math.floor(of_era / 146096)
  local year = math.floor((of_era - leap_days) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)
  local day = of_year - math.floor((153 * month + 2) / 5) + 1
  year, month = era * 400 + year, month + 3
  if month > 12 then year, month = year + 1, month - 12 end
  return string.format('%04d-%02d-%02d %s', year, month, day, time)
end
