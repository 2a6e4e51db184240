-- Moves rows of an account from the one hash in which format 1 kept all of them to the hashes of their hours. Does
-- nothing twice.
--
-- KEYS  head, the hash of format 1, which the keys of hours begin with
-- ARGV  epoch, then fields
local head, hours = unpack(KEYS)
local known = redis.call('HGET', head, 'epoch')
if known and tonumber(ARGV[1]) < tonumber(known) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' was followed by ' .. known)
end
for position = 2, #ARGV do
  local value = redis.call('HGET', hours, ARGV[position])
  if value then
    local hour, dimensions = string.match(ARGV[position], '^(%d+) (.*)$')
    redis.call('HDEL', hours, ARGV[position])
    redis.call('HSET', hours .. ':' .. hour, dimensions, value)
    redis.call('HINCRBY', hours .. ':index', hour, 1)
  end
end
return 1
