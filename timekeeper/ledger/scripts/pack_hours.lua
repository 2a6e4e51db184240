-- Replaces an account's rows of some hours, and packed values, by new packed values: all of it or nothing.
--
-- KEYS  head, the beginning of the names of the hours' keys, folded
-- ARGV  fencing token, the value of folds that the caller has read, the number of hours to remove, for each of them
--       the hour and the number of writes to it that the caller has read, the number of packed values to remove,
--       their names, then the name and the content of each new packed value
-- Returns 1, or 0 if an hour or the packed values are not as the caller has read them; then nothing is written.
local head, hours, folded = unpack(KEYS)
local refused = refusal(head, ARGV[1])
if refused then
  return refused
end
if (redis.call('HGET', head, 'folds') or '0') ~= ARGV[2] then
  return 0
end
local index, last_hour = hours .. ':index', 3 + 2 * tonumber(ARGV[3])
for position = 4, last_hour, 2 do
  if redis.call('HGET', index, ARGV[position]) ~= ARGV[position + 1] then
    return 0
  end
end
expect_hashes(folded)
expect_count(head, 'folds')
local last_old = last_hour + 1 + tonumber(ARGV[last_hour + 1])
-- The removals come first: if Redis has no memory left, it refuses a script only if the first write can take memory.
for position = 4, last_hour, 2 do
  redis.call('HDEL', index, ARGV[position])
  redis.call('DEL', key_of_rows(hours, ARGV[position]))
  redis.call('DEL', key_of_sums(hours, ARGV[position]))
end
for position = last_hour + 2, last_old do
  redis.call('HDEL', folded, ARGV[position])
end
for position = last_old + 1, #ARGV, 2 do
  redis.call('HSET', folded, ARGV[position], ARGV[position + 1])
end
redis.call('HINCRBY', head, 'folds', 1)
return 1
