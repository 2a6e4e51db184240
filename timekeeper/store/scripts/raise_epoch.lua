-- Writes down the epoch of the leader where the store has lost it, or knows an earlier one only.
--
-- KEYS  epoch
-- ARGV  the leader's epoch
if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[1]) or '0') then
  write_though_full(KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
