-- Runs one writing command though Redis has no memory left.
--
-- KEYS  the command's, the latest fencing token
-- ARGV  the leader's fencing token or an empty text, the command and its further arguments
local known = ordinal(text_of(KEYS[2])) or 0
if ARGV[1] ~= '' and known > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. known)
end
write_though_full(KEYS[1])
return redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3))
