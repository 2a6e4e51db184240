-- Gives a leader its fencing token: higher than any token before, and at least as high as the number of its term. An
-- earlier term, or another holder of the same term, gets none: a fenced leader must not fence its successor.
--
-- KEYS  fencing token, format, the format that the store is being converted from, term
-- ARGV  the term's number, the format that the leader reads and writes, the term's holder, and the highest fencing
--       token under which an account was written: it counts if the store's own entry cannot be read
-- Returns the fencing token.
local known, holder = stored_term(KEYS[4])
if known and (tonumber(ARGV[1]) < known or (tonumber(ARGV[1]) == known and ARGV[3] ~= holder)) then
  return redis.error_reply('FENCED term ' .. ARGV[1] .. ' of ' .. ARGV[3] .. ' was followed by ' .. known .. ' of ' .. holder)
end
local format = ordinal(text_of(KEYS[2]))
if not format and redis.call('EXISTS', KEYS[2]) == 1 then
  -- A later timekeeper may have written the store in a format that this one does not know.
  return redis.error_reply('FORMAT ' .. KEYS[2] .. ' must hold the format of the store as a number, and holds '
    .. (text_of(KEYS[2]) and 'another text' or 'another type') .. ': find out which version of FairGPU led last, and write '
    .. 'its format with: set ' .. KEYS[2] .. ' ' .. ARGV[2] .. ' (' .. ARGV[2] .. ' is the format of this version)')
end
format = format or tonumber(ARGV[2])
if format > tonumber(ARGV[2]) then
  return redis.error_reply('FORMAT the store is of format ' .. format .. ', and this timekeeper knows formats up to '
    .. ARGV[2] .. ': install the timekeeper that wrote it, or a later one')
end
local fencing_token = math.max((ordinal(text_of(KEYS[1])) or tonumber(ARGV[4])) + 1, tonumber(ARGV[1]))
local is_older = format < tonumber(ARGV[2])
write_though_full(KEYS[1])
redis.call('SET', KEYS[1], string.format('%d', fencing_token))
if is_older then
  redis.call('SET', KEYS[3], format)
end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[4], ARGV[1] .. ' ' .. ARGV[3])
return fencing_token
