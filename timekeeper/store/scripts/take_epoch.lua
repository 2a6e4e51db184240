-- Gives a new leader its epoch: higher than any before, and at least as high as its Lease says.
--
-- KEYS  epoch
-- ARGV  the least epoch
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%d', epoch))
return epoch
