-- Keeps of what an ended pod reported when that last was and what it came to: nobody reads the rest of it any more, and
-- pods that ended stay on the API server for as long as somebody likes.
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
