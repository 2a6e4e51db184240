-- Moves rows of an account from the one hash of format 1 to the hashes of their hours, and adds them to the hours'
-- sums. If the new hash has a row of the same dimensions, the moved row is added to that row: accounts are settled
-- even before they can be converted. A repeated call has no effect.
--
-- KEYS  head, the hash of format 1, whose name begins the names of the hours' keys
-- ARGV  fencing token, then the fields of the rows to move
local head, hours = unpack(KEYS)
local known = redis.call('HGET', head, 'epoch')
if is_followed(ARGV[1], known) then
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
