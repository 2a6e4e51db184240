-- Notes that a pod was heard of. What it reported stays as it is.
--
-- KEYS  report
-- ARGV  instant, seconds to keep it
redis.call('HSET', KEYS[1], 'at', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
