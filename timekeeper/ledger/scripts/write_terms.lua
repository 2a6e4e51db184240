-- Writes the terms of sessions' reports.
--
-- KEYS  reports
-- ARGV  seconds to keep them, then for each key the terms, and the offsets of its periods from a quarter of an hour
-- Returns for each key 1, or the error of that key: one stops no other.
local answers = {}
for index, key in ipairs(KEYS) do
  write_though_full(key)
  local written = redis.pcall('HSET', key, 'terms', ARGV[2 * index], 'phase', ARGV[2 * index + 1])
  if type(written) == 'number' then
    written = redis.call('EXPIRE', key, ARGV[1])
  end
  answers[index] = written
end
return answers
