-- Writes what is known of a pod's reports, if nothing of what it was computed from has changed since.
--
-- KEYS  report
-- ARGV  the state and the closing instant that it was computed from (empty for none), the new state, when the report
--       was received, the GPU time that all reports come to (empty where none is measured), seconds to keep it, the
--       least nanoseconds between two reports, 1 where this one is the first or the last of its boot
-- Returns 1 where it was written, 0 where something had changed, and 2 where it comes too early after the one before.
local known = redis.call('HMGET', KEYS[1], 'state', 'closed', 'at', 'a')
if (known[1] or '') ~= ARGV[1] or (known[2] or '') ~= ARGV[2] then
  return 0
end
local pause, instant = tonumber(ARGV[7]), tonumber(ARGV[4])
local early, at_once = paced({known[3], known[4]}, instant, pause, ARGV[8] == '1')
if early then
  return 2
end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'at', ARGV[4])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'used', ARGV[5])
end
if at_once then
  redis.call('HSET', KEYS[1], 'a', at_once)
end
redis.call('EXPIRE', KEYS[1], ARGV[6])
return 1
