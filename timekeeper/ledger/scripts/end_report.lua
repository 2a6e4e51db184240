-- Reduces the stored reports of ended pods to the time of the last report and the GPU time of all reports. Nothing
-- reads the other fields again, and an ended pod may stay on the API server for any time.
--
-- KEYS  the hash of each pod's reports
-- ARGV  the seconds to keep these two fields
-- Returns for each key 1, or the error of that key; the other keys are dealt with all the same.
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
