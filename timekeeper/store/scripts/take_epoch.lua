-- Gives a new leader its epoch: higher than any before, and at least as high as its Lease says.
--
-- KEYS  epoch, format, the format that the store is being converted from
-- ARGV  the least epoch, the format of the store that the leader reads and writes
local format = redis.call('GET', KEYS[2]) or ARGV[2]
if tonumber(format) > tonumber(ARGV[2]) then
  return redis.error_reply('FORMAT the store is of format ' .. format .. ', and this timekeeper knows formats up to '
    .. ARGV[2] .. ': install the timekeeper that wrote it, or a later one')
end
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%d', epoch))
if tonumber(format) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], format)
end
redis.call('SET', KEYS[2], ARGV[2])
return epoch
