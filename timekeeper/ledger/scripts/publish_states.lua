-- Publishes changed states of namespaces under one new version, and wakes the readers that wait for it.
--
-- KEYS  head, values, changes
-- ARGV  fencing token, a store id to use if a new one is needed, channel, prices, default, charge, unused, the runs of
--       the servers that hold the store, then the namespace and the state of each change
-- Returns the store id and the version.
local head, values, changes = unpack(KEYS)
local fencing_token, id, channel, prices, default, charge, unused, servers = unpack(ARGV, 1, 8)
local known = redis.call('HMGET', head, 'epoch', 'id', 'prices', 'default', 'charge', 'servers', 'unused')
local version = redis.call('HGET', head, 'version') or '0'
expect_hashes(values)
redis.call('ZCARD', changes)
if is_followed(fencing_token, known[1]) then
  return redis.error_reply('FENCED fencing token ' .. fencing_token .. ' was followed by ' .. known[1])
end
-- A restarted or replaced server may have lost versions that readers have received. Under a new store id these
-- versions are void.
if known[6] ~= servers then
  known[2] = false
end
-- The store also gets a new id if no leader can have written the id, or if the version is no number that can be
-- counted up.
if not ordinal(version) or (known[2] and not string.find(known[2], '^[%w-]+$')) then
  known[2], version = false, '0'
end
local same = #ARGV == 8 and known[2] and known[3] == prices and known[4] == default and known[5] == charge
  and (known[7] or '') == unused
local following = string.format('%.0f', tonumber(version) + (same and 0 or 1))

write_though_full(head)
redis.call('HSET', head, 'epoch', fencing_token, 'id', known[2] or id, 'prices', prices, 'default', default,
  'charge', charge, 'unused', unused, 'servers', servers, 'version', following)
if same then
  return {known[2], following}
end
for position = 9, #ARGV, 2 do
  redis.call('HSET', values, ARGV[position], ARGV[position + 1])
  redis.call('ZADD', changes, following, ARGV[position])
end
redis.call('PUBLISH', channel, following)
return {known[2] or id, following}
