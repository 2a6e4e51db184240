-- Writes the limits of sessions' reports. Stored limits stay, because earlier reports were priced by them. They are
-- replaced if use is billed now and was not before, or the reverse. Limits and phases that a later fencing token has
-- written always stay.
--
-- KEYS  the hash of each session's reports
-- ARGV  the seconds to keep the reports, 1 if stored limits are replaced in any case, the leader's fencing token,
--       then for each key the limits, the phases of the coming periods, the session's start in microseconds since
--       1970, and the number of its vGPUs
-- Returns for each key 1, or the error of that key; the other keys are written all the same.
local function is_billed(limits)
  return type(limits) == 'string' and string.match(limits, ',([01]),%d+,%d+%]$')
end

-- Reduces the GPU time of reports that an earlier version of FairGPU took without a bound to the most that the
-- session can have used by the last report. Instants in microseconds are exact in a double, those in nanoseconds are
-- not.
local function hold_old_use(key, start, shares)
  local known = redis.call('HMGET', key, 'state', 'used', 'at')
  local used, at = known[2], known[3]
  if known[1] or not used then
    return
  end
  if not at or #at > 19 or #at < 4 or string.find(at, '%D') then
    redis.call('HDEL', key, 'used')
    return
  end
  local most = shares * math.max(tonumber(string.sub(at, 1, -4)) - start, 0)
  if (ordinal(used) or math.huge) > most then
    redis.call('HSET', key, 'used', string.format('%.0f', most))
  end
end

local fencing_token, answers = ARGV[3], {}
for index, key in ipairs(KEYS) do
  local limits, phases, start, shares = unpack(ARGV, 4 * index, 4 * index + 3)
  write_though_full(key)
  local known = redis.pcall('HMGET', key, 'terms', 'epoch')
  if ARGV[2] ~= '1' and is_billed(known[1]) and is_billed(known[1]) == is_billed(limits) then
    limits = known[1]
  end
  local written = 1
  if not is_followed(fencing_token, known[2]) then
    written = redis.pcall('HSET', key, 'terms', limits, 'phase', phases, 'epoch', fencing_token)
  end
  if type(written) == 'number' then
    hold_old_use(key, tonumber(start), tonumber(shares))
    written = redis.call('EXPIRE', key, ARGV[1])
  end
  answers[index] = written
end
return answers
