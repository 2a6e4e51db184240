-- Records the time of a pod's proof of life. Its reports stay as they are.
--
-- KEYS  report
-- ARGV  instant, seconds to keep it, the least nanoseconds between two writes
local early = paced({redis.call('HGET', KEYS[1], 'at')}, tonumber(ARGV[1]), tonumber(ARGV[3]), false)
if early then
  return 1
end
redis.call('HSET', KEYS[1], 'at', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
