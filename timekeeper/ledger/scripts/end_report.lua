-- Reduces an ended pod's reports to the time of the last one and their GPU time. The rest is never read again, and ended
-- pods may stay on the API server for any time.
--
-- KEYS  report
-- ARGV  seconds to keep it
local kept = redis.call('HMGET', KEYS[1], 'at', 'used')
redis.call('DEL', KEYS[1])
if kept[1] then
  redis.call('HSET', KEYS[1], 'at', kept[1])
  if kept[2] then
    redis.call('HSET', KEYS[1], 'used', kept[2])
  end
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 1
