-- Renames a packed value of use from its name in format 1 to its name in format 2. A repeated call has no effect.
--
-- KEYS  head, folded
-- ARGV  fencing token, the old name, the new name
local head, folded, old = KEYS[1], KEYS[2], ARGV[2]
local known = redis.call('HGET', head, 'epoch')
if is_followed(ARGV[1], known) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. known)
end
local value = redis.call('HGET', folded, old)
if value then
  expect_count(head, 'folds')
  redis.call('HDEL', folded, old)
  redis.call('HSET', folded, ARGV[3], value)
  redis.call('HINCRBY', head, 'folds', 1)
end
return 1
