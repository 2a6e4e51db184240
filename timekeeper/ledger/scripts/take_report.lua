-- Writes the totals of a pod's reports with one more report, unless another process has written them since the caller
-- read them.
--
-- KEYS  the hash of the pod's reports
-- ARGV  the totals and the instant `closed` that the caller has read (empty for none), the new totals, the instant at
--       which the report was received, the GPU time of all reports (empty if none names a device), the seconds to
--       keep all this, the least nanoseconds between two reports, 1 if the report is the first or the last of its
--       sidecar's start (else 0)
-- Returns 1 if it wrote, 0 if another process has written since then, and 2 if the report comes too early after the
-- one before.
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
