-- Entries after a place, oldest first, at one moment: a few segments, and once there are no more, what is not packed yet.
--
-- KEYS  ledger, segments
-- ARGV  the id after which to go on, or nothing; the most segments; the most entries that are not packed
-- Returns the segments, whether these are the last ones and, if so, entries as XRANGE does.
local ledger, segments = unpack(KEYS)
local after, most, limit = unpack(ARGV)
local found = {}
for _, field in ipairs(redis.call('HKEYS', segments)) do
  local time, counter = string.match(field, '^(%d+)-(%d+) ')
  found[#found + 1] = {field = field, time = tonumber(time), counter = tonumber(counter)}
end
table.sort(found, function(one, other)
  return one.time < other.time or (one.time == other.time and one.counter < other.counter)
end)
local after_time, after_counter = string.match(after, '^(%d+)-?(%d*)$')
after_time, after_counter = tonumber(after_time or -1), tonumber(after_counter or '') or 0
local taken = {}
for _, segment in ipairs(found) do
  if segment.time > after_time or (segment.time == after_time and segment.counter > after_counter) then
    if #taken == tonumber(most) then
      return {taken, 0, {}}
    end
    taken[#taken + 1] = redis.call('HGET', segments, segment.field)
  end
end
return {taken, 1, redis.call('XRANGE', ledger, after == '' and '-' or '(' .. after, '+', 'COUNT', limit)}
