-- Closes a session's time up to an instant, and reads the terms and the state of its reports. Marks only rise.
--
-- KEYS  report
-- ARGV  the instant before which reports add nothing any more, the one before which reports are not read any more, the
--       phases of the periods to come, seconds to keep the report
-- Returns terms and state (empty for none); nothing where there are no terms.
local known = redis.call('HMGET', KEYS[1], 'terms', 'state', 'closed', 'settled', 'phase')
if not known[1] then
  return false
end
local function later(given, held)
  return not held or string.find(held, '%D') or #given > #held or (#given == #held and given > held)
end
local changed = {}
for place, name in ipairs({'closed', 'settled'}) do
  if ARGV[place] ~= '0' and later(ARGV[place], known[place + 2]) then
    changed[#changed + 1] = name
    changed[#changed + 1] = ARGV[place]
  end
end
if ARGV[3] ~= known[5] then
  changed[#changed + 1] = 'phase'
  changed[#changed + 1] = ARGV[3]
end
if #changed > 0 then
  write_though_full(KEYS[1])
  redis.call('HSET', KEYS[1], unpack(changed))
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {known[1], known[2] or ''}
