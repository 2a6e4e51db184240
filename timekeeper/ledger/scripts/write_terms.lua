-- Writes the terms of sessions' reports. Terms that are there stay, since what was reported has been priced by them, unless
-- use is billed now and was not before, or the reverse.
--
-- KEYS  reports
-- ARGV  seconds to keep them, 1 where terms that are there are replaced, then for each key the terms, and the offsets of
--       its periods from a quarter of an hour
-- Returns for each key 1, or the error of that key: one stops no other.
local function is_billed(terms)
  return type(terms) == 'string' and string.match(terms, ',([01]),%d+,%d+%]$')
end

local answers = {}
for index, key in ipairs(KEYS) do
  local terms, phases = ARGV[2 * index + 1], ARGV[2 * index + 2]
  write_though_full(key)
  local known = ARGV[2] ~= '1' and redis.pcall('HGET', key, 'terms')
  if is_billed(known) and is_billed(known) == is_billed(terms) then
    terms = known
  end
  local written = redis.pcall('HSET', key, 'terms', terms, 'phase', phases)
  if type(written) == 'number' then
    written = redis.call('EXPIRE', key, ARGV[1])
  end
  answers[index] = written
end
return answers
