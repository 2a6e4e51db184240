-- Runs one writing command of the leader though Redis has no memory left.
--
-- KEYS  the command's
-- ARGV  the command and its further arguments
write_though_full(KEYS[1])
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
