-- Moves rows of an account from the one hash of format 1 to the hashes of their hours, and adds them to the hours' sums.
-- A row is added to one that stands there: an account that could not be converted at first is settled all the same. A
-- repeated call changes nothing.
--
-- KEYS  head, the hash of format 1, which the keys of hours begin with
-- ARGV  fencing token, then fields
local head, hours = unpack(KEYS)
local known = redis.call('HGET', head, 'epoch')
if known and tonumber(ARGV[1]) < tonumber(known) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. known)
end
local moved, rows = {}, {}
for position = 2, #ARGV do
  local field = ARGV[position]
  local value = redis.call('HGET', hours, field)
  if value then
    local hour, dimensions = string.match(field, '^(%d+) (.*)$')
    if not hour then
      return redis.error_reply('DATA the hour of a row cannot be read: ' .. field)
    end
    expect_count(hours .. ':index', hour)
    local known = redis.call('HGET', key_of_rows(hours, hour), dimensions)
    local figures = {string.match(value, ROW)}
    if #figures == 4 then
      add_to_row(rows, hour, dimensions, {}, figures)
      value = known and grown_row(known, rows[hour][dimensions]) or value
    elseif known then
      return redis.error_reply('DATA a row cannot be read: ' .. field)
    end
    moved[#moved + 1] = {field = field, hour = hour, dimensions = dimensions, value = value}
  end
end
local sums = grown_sums(hours, rows)
for _, row in ipairs(moved) do
  redis.call('HDEL', hours, row.field)
  redis.call('HSET', key_of_rows(hours, row.hour), row.dimensions, row.value)
  redis.call('HINCRBY', hours .. ':index', row.hour, 1)
end
for hour, texts in pairs(sums) do
  write_sums(hours, hour, texts)
end
return 1
