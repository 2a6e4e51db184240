-- Sets the marks of sessions' reports, and reads the reports' limits and totals as of then. An instant of a mark is
-- never set back, and phases that a later fencing token has written stay.
--
-- KEYS  the hash of each session's reports
-- ARGV  the seconds to keep the reports, the leader's fencing token, then for each key its marks: the instant before
--       which reports add nothing any more, the instant before which totals are not needed any more, and the phases
--       of the coming periods
-- Returns for each key the limits and the totals (empty for none), nil if there are no limits, or the error of that
-- key; the other keys are dealt with all the same.
local function later(given, held)
  return not held or string.find(held, '%D') or #given > #held or (#given == #held and given > held)
end

local fencing_token, answers = ARGV[2], {}
for index, key in ipairs(KEYS) do
  local known, answer = redis.pcall('HMGET', key, 'terms', 'state', 'closed', 'settled', 'phase', 'epoch'), false
  if known.err then
    answer = known
  elseif known[1] then
    local closed, settled, phases = unpack(ARGV, 3 * index, 3 * index + 2)
    local changed = {}
    if closed ~= '0' and later(closed, known[3]) then
      changed[1], changed[2] = 'closed', closed
    end
    if settled ~= '0' and later(settled, known[4]) then
      changed[#changed + 1], changed[#changed + 2] = 'settled', settled
    end
    if (phases ~= known[5] or fencing_token ~= known[6]) and not is_followed(fencing_token, known[6]) then
      changed[#changed + 1], changed[#changed + 2] = 'phase', phases
      changed[#changed + 1], changed[#changed + 2] = 'epoch', fencing_token
    end
    if #changed > 0 then
      write_though_full(key)
      redis.call('HSET', key, unpack(changed))
      redis.call('EXPIRE', key, ARGV[1])
    end
    answer = {known[1], known[2] or ''}
  end
  answers[index] = answer
end
return answers
