-- Publishes changed states of namespaces under one new version, and wakes whoever waits for it.
--
-- KEYS  head, values, changes
-- ARGV  epoch, a new id, channel, prices, default, charge, which servers hold the store, then namespace and state of
--       each change
-- Returns the id and the version.
local head, values, changes = unpack(KEYS)
local epoch, id, channel, prices, default, charge, servers = unpack(ARGV, 1, 7)
local known = redis.call('HMGET', head, 'epoch', 'id', 'prices', 'default', 'charge', 'servers')
if known[1] and tonumber(epoch) < tonumber(known[1]) then
  return redis.error_reply('FENCED epoch ' .. epoch .. ' was followed by ' .. known[1])
end
-- A server that was restarted or replaced may have forgotten versions that readers have heard of: all of them mean
-- nothing under a new id.
if known[6] ~= servers then
  known[2] = false
end
write_though_full(head)
redis.call('HSET', head, 'epoch', epoch, 'id', known[2] or id, 'prices', prices, 'default', default,
  'charge', charge, 'servers', servers)
if #ARGV == 7 and known[2] and known[3] == prices and known[4] == default and known[5] == charge then
  return {known[2], redis.call('HGET', head, 'version')}
end
local version = redis.call('HINCRBY', head, 'version', 1)
for position = 8, #ARGV, 2 do
  redis.call('HSET', values, ARGV[position], ARGV[position + 1])
  redis.call('ZADD', changes, version, ARGV[position])
end
redis.call('PUBLISH', channel, tostring(version))
return {known[2] or id, tostring(version)}
