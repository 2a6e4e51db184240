-- Reads a period of an account as of one moment, for the auditor. If the account has many sessions, the caller reads
-- their hashes piece by piece, and runs the script again if they have changed meanwhile.
--
-- KEYS  head, periods, period, amounts, sessions, ended, grants, corrections, pots, ledger, segments, the beginning
--       of the names of the hours' keys, folded
-- ARGV  the first hour whose rows are wanted, the hour after the last one, the most rows to read (the last hour is read
--       whole), the most fields of amounts, sessions and ended to read
-- Returns a list: the contents of the first nine hashes, of which amounts, sessions and ended are empty if they have
-- more fields together than that; the id of the ledger's last entry (entries never change, so the caller reads those up
-- to it later); the hours that were read, each followed by its fields and values; the unread hours, each followed by
-- the number of writes to it; the names of the packed values; the total of the period that ends where this one starts
-- (empty if there is none); the sums of the hours that were read, each hour followed by its fields and values; and, if
-- amounts, sessions and ended were not read, their numbers of fields.
local AMOUNTS, ENDED = 4, 6
local found, sizes, fields = {}, {}, 0
for index = AMOUNTS, ENDED do
  sizes[#sizes + 1] = redis.call('HLEN', KEYS[index])
  fields = fields + sizes[#sizes]
end
local unread = fields > tonumber(ARGV[4])
for index = 1, 9 do
  local large = unread and index >= AMOUNTS and index <= ENDED
  found[index] = large and {} or redis.call('HGETALL', KEYS[index])
end
local last = redis.call('XREVRANGE', KEYS[10], '+', '-', 'COUNT', 1)
found[10] = last[1] and last[1][1] or ''
if not last[1] then
  local latest, counter = -1, -1
  for _, name in ipairs(redis.call('HKEYS', KEYS[11])) do
    local id, time, place = string.match(name, '^((%d+)%-(%d+)) ')
    time, place = tonumber(time), tonumber(place)
    if time > latest or (time == latest and place > counter) then
      found[10], latest, counter = id, time, place
    end
  end
end
local first, finish, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rows, unread_hours = read_hours(KEYS[12], first, finish, most, key_of_rows)
found[11], found[12], found[13] = rows, unread_hours, redis.call('HKEYS', KEYS[13])
local start, before = string.match(KEYS[3], '%d+$'), nil
for position = 1, #found[2], 2 do
  if found[2][position + 1] == start then
    before = string.sub(KEYS[3], 1, -#start - 1) .. found[2][position]
  end
end
found[14] = before and redis.call('HGET', before, 'total') or ''
found[15] = {}
for position = 1, #rows, 2 do
  local hour = rows[position]
  found[15][position], found[15][position + 1] = hour, redis.call('HGETALL', key_of_sums(KEYS[12], hour))
end
found[16] = unread and sizes or {}
return found
