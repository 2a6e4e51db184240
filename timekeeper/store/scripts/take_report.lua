-- Takes over a pod's report unless a later one of the same boot was taken over before.
--
-- KEYS  report
-- ARGV  boot, seq, instant, body, seconds to keep it, most boots to remember
-- Returns whether it was taken over.
local known = redis.call('HGET', KEYS[1], 'b:' .. ARGV[1])
if known and tonumber(ARGV[2]) <= tonumber(known) then
  return 0
end
if not known and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[6]) then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'b:' .. ARGV[1], ARGV[2], 'at', ARGV[3], 'body', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
