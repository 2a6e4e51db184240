-- Takes rows out of an account's hours and puts months in their place, all of it or nothing.
--
-- KEYS  head, hours, folded
-- ARGV  epoch, how many months, then for each its name, the SHA-1 of what is there now (of nothing, where there is
--       none) and what it is to be, then field and value of each row as it is expected
-- Returns 1, or 0 where anything is not as it is expected.
local head, hours, folded = unpack(KEYS)
local refused = refusal(head, ARGV[1])
if refused then
  return refused
end
local first = 3 + 3 * tonumber(ARGV[2])
for position = 3, first - 1, 3 do
  if redis.sha1hex(redis.call('HGET', folded, ARGV[position]) or '') ~= ARGV[position + 1] then
    return 0
  end
end
for position = first, #ARGV, 2 do
  if redis.call('HGET', hours, ARGV[position]) ~= ARGV[position + 1] then
    return 0
  end
end
for position = 3, first - 1, 3 do
  redis.call('HSET', folded, ARGV[position], ARGV[position + 2])
end
local until_hour = tonumber(redis.call('HGET', head, 'folded') or '0')
for position = first, #ARGV, 2 do
  redis.call('HDEL', hours, ARGV[position])
  until_hour = math.max(until_hour, tonumber(string.match(ARGV[position], '^%d+')) + 1)
end
redis.call('HSET', head, 'folded', string.format('%d', until_hour))
return 1
