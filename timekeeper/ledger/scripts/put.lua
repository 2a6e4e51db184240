-- Runs one command that writes to a key, even if Redis has no memory left.
--
-- KEYS  the command's key, the latest fencing token
-- ARGV  the leader's fencing token (empty for a write that any process may do), the command, and its arguments after
--       the key
-- Returns the command's answer.
local known = ordinal(text_of(KEYS[2])) or 0
if ARGV[1] ~= '' and known > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. known)
end
write_though_full(KEYS[1])
return redis.call(ARGV[2], KEYS[1], unpack(ARGV, 3))
