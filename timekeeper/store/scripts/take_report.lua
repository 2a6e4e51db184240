-- Takes over a pod's report unless a later one of the same boot was taken over before, and adds up what was used over
-- all boots: each of them counts from 0.
--
-- KEYS  report
-- ARGV  boot, seq, instant, body, seconds to keep it, most boots to remember, what the boot's counters come to
-- Returns whether it was taken over.
local known = redis.call('HGET', KEYS[1], 'b:' .. ARGV[1])
if known and tonumber(ARGV[2]) <= tonumber(known) then
  return 0
end
local total = tonumber(redis.call('HGET', KEYS[1], 'used') or '0')
local before = tonumber(redis.call('HGET', KEYS[1], 'u:' .. ARGV[1]) or '0')
local counted = math.max(tonumber(ARGV[7]), before)
if not known and redis.call('HLEN', KEYS[1]) > 2 * tonumber(ARGV[6]) then
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'b:' .. ARGV[1], ARGV[2], 'at', ARGV[3], 'body', ARGV[4],
  'u:' .. ARGV[1], string.format('%.0f', counted), 'used', string.format('%.0f', total + counted - before))
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
