-- Publishes changed states of namespaces under one new version, and wakes whoever waits for it.
--
-- KEYS  head, values, changes
-- ARGV  epoch, an id for a store that has none, channel, prices, default, charge, then namespace and state of each
--       change
-- Returns the id and the version.
local head, values, changes = unpack(KEYS)
local epoch, id, channel, prices, default, charge = unpack(ARGV)
local known = redis.call('HMGET', head, 'epoch', 'id', 'prices', 'default', 'charge')
if known[1] and tonumber(epoch) < tonumber(known[1]) then
  return redis.error_reply('FENCED epoch ' .. epoch .. ' was followed by ' .. known[1])
end
redis.call('HSET', head, 'epoch', epoch, 'id', known[2] or id, 'prices', prices, 'default', default,
  'charge', charge)
if #ARGV == 6 and known[3] == prices and known[4] == default and known[5] == charge then
  return {known[2], redis.call('HGET', head, 'version')}
end
local version = redis.call('HINCRBY', head, 'version', 1)
for position = 7, #ARGV, 2 do
  redis.call('HSET', values, ARGV[position], ARGV[position + 1])
  redis.call('ZADD', changes, version, ARGV[position])
end
redis.call('PUBLISH', channel, tostring(version))
return {known[2] or id, tostring(version)}
