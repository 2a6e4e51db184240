-- Writes the epoch and the term of the leader where the store has lost them, or holds earlier ones: a store without a
-- term would give an epoch to a fenced leader.
--
-- KEYS  epoch, term
-- ARGV  the leader's epoch, its term, and the term's holder
local epoch = ordinal(text_of(KEYS[1])) or 0
local known, holder = stored_term(KEYS[2])
local term = tonumber(ARGV[2])
local later = known and (known > term or (known == term and holder ~= ARGV[3]))
if later or epoch > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' was followed by ' .. epoch .. ', term ' .. (known or 'unknown'))
end
if epoch < tonumber(ARGV[1]) or known ~= term then
  write_though_full(KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
end
return 1
