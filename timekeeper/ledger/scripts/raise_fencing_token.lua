-- Writes the fencing token and the term of the leader if the store has lost them or holds earlier ones. A store
-- without a term would give a new fencing token to a fenced leader.
--
-- KEYS  fencing token, term
-- ARGV  the leader's fencing token, its term, and the term's holder
-- Returns 1.
local fencing_token = ordinal(text_of(KEYS[1])) or 0
local known, holder = stored_term(KEYS[2])
local term = tonumber(ARGV[2])
local later = known and (known > term or (known == term and holder ~= ARGV[3]))
if later or fencing_token > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. fencing_token .. ', term ' .. (known or 'unknown'))
end
if fencing_token < tonumber(ARGV[1]) or known ~= term then
  write_though_full(KEYS[1])
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[3])
end
return 1
