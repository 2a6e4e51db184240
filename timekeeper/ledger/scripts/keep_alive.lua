-- Records the time at which a pod proved that it lives, as a report without figures does. Its stored reports stay as
-- they are.
--
-- KEYS  the hash of the pod's reports
-- ARGV  the instant of the proof, the seconds to keep it, the least nanoseconds between two writes (a proof that comes
--       sooner is not recorded)
-- Returns 1.
local early = paced({redis.call('HGET', KEYS[1], 'at')}, tonumber(ARGV[1]), tonumber(ARGV[3]), false)
if early then
  return 1
end
redis.call('HSET', KEYS[1], 'at', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
