-- Takes over a pod's report unless a later one of the same boot was taken over before, and adds up what was used over
-- all boots: each of them counts from 0.
--
-- KEYS  report
-- ARGV  boot, seq, instant, body, seconds to keep it, most boots to remember, what the boot's counters come to, the least
--       nanoseconds between two reports, 1 where it is the last of its boot
-- Returns 1 where it was taken over, 0 where a later one was, and 2 where it comes too early after the one before.
local known = redis.call('HGET', KEYS[1], 'b:' .. ARGV[1])
if known and tonumber(ARGV[2]) <= tonumber(known) then
  return 0
end
local pause, instant = tonumber(ARGV[8]), tonumber(ARGV[3])
local early, at_once = paced(redis.call('HMGET', KEYS[1], 'at', 'a'), instant, pause, not known or ARGV[9] == '1')
if early then
  return 2
end
local total = tonumber(redis.call('HGET', KEYS[1], 'used') or '0')
local before = tonumber(redis.call('HGET', KEYS[1], 'u:' .. ARGV[1]) or '0')
local counted = math.max(tonumber(ARGV[7]), before)
if not known and redis.call('HLEN', KEYS[1]) > 2 * tonumber(ARGV[6]) then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'b:' .. ARGV[1], ARGV[2], 'at', ARGV[3], 'body', ARGV[4],
  'u:' .. ARGV[1], string.format('%.0f', counted), 'used', string.format('%.0f', total + counted - before))
if at_once then
  redis.call('HSET', KEYS[1], 'a', at_once)
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
