-- Writes the instant at which a period's money ran out, and the account's figures for readers.
--
-- KEYS  head, period
-- ARGV  fencing token, that instant (empty for none), the figures as JSON, the samples of recent spending as JSON
--       (empty if they are the stored ones)
-- Returns 1.
local refused = refusal(KEYS[1], ARGV[1])
if refused then
  return refused
end
expect_hashes(KEYS[2])
write_though_full(KEYS[1])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'summary', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'burn', ARGV[4])
end
redis.call('HSET', KEYS[2], 'exhausted', ARGV[2])
return 1
