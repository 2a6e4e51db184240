-- Reduces ended pods' reports to the time of the last one and their GPU time. The rest is never read again, and ended pods
-- may stay on the API server for any time.
--
-- KEYS  reports
-- ARGV  seconds to keep them
-- Returns for each key 1, or the error of that key: one stops no other.
local answers = {}
for index, key in ipairs(KEYS) do
  local kept = redis.pcall('HMGET', key, 'at', 'used')
  if not kept.err and redis.call('HLEN', key) > (kept[1] and 1 or 0) + (kept[2] and 1 or 0) then
    redis.call('DEL', key)
    if kept[1] then
      redis.call('HSET', key, 'at', kept[1])
    end
    if kept[1] and kept[2] then
      redis.call('HSET', key, 'used', kept[2])
    end
  end
  if not kept.err then
    redis.call('EXPIRE', key, ARGV[1])
  end
  answers[index] = kept.err and kept or 1
end
return answers
