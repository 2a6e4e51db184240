-- The use of an account in a window, and its open sessions with what is not put down to hours yet, at one moment. What
-- would take too long is named instead of read: the caller reads it piece by piece, and asks again if it has changed.
--
-- KEYS  head, what the keys of hours begin with, folded, sessions, what the keys of amounts begin with (the period's
--       start follows)
-- ARGV  what the caller knows of the past or nothing, the hour before which it then needs no rows, the first hour of the
--       window, the hour after its last one, the most rows to read (the last hour is read whole), the most bytes of packed
--       rows (the last value is read whole), the most sessions
-- Returns when its sessions were last settled; the starts of the latest period and of the one before; the past; whether
-- the caller knows that; hours, each followed by its fields and values; packed values; for each open session its record
-- and what stands of it in the two periods; then the stamp of this moment (version, folds), the hours that were not read,
-- each followed by its revision, the names of packed values that were not read, and whether sessions were not read.
-- Returns nothing where the account has no period.
local head, hours, folded, sessions, amounts = unpack(KEYS)
local settled, latest, previous, past, version, folds =
  unpack(redis.call('HMGET', head, 'settled', 'period', 'previous', 'past', 'version', 'folds'), 1, 6)
if not latest then
  return false
end
local converting = redis.error_reply('FORMAT the use of this account is being converted: ask again in a minute')
if redis.call('EXISTS', hours) == 1 then
  return converting
end
past = past or '-'
local known = ARGV[1] == past
local first, finish = tonumber(ARGV[3]), tonumber(ARGV[4])
if known then
  first = math.max(first, tonumber(ARGV[2]))
end
local most_rows, most_bytes, most_sessions = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local index, wanted = redis.call('HGETALL', hours .. ':index'), {}
for position = 1, #index, 2 do
  local hour = tonumber(index[position])
  if hour >= first and hour < finish then
    wanted[#wanted + 1] = {number = hour, hour = index[position], revision = index[position + 1]}
  end
end
-- The latest hours are those that change: they come first.
table.sort(wanted, function(one, other) return one.number > other.number end)
local rows, unread_hours, count = {}, {}, 0
for _, each in ipairs(wanted) do
  if count < most_rows then
    local found = redis.call('HGETALL', hours .. ':' .. each.hour)
    rows[#rows + 1], rows[#rows + 2] = each.hour, found
    count = count + #found / 2
  else
    unread_hours[#unread_hours + 1], unread_hours[#unread_hours + 2] = each.hour, each.revision
  end
end

local packed, unread_parts, bytes = {}, {}, 0
for _, name in ipairs(redis.call('HKEYS', folded)) do
  local from, to = string.match(name, '^[hd] (%d+) (%d+)$')
  if not from then
    return converting
  end
  if tonumber(to) > first and tonumber(from) < finish then
    if bytes < most_bytes then
      packed[#packed + 1] = redis.call('HGET', folded, name)
      bytes = bytes + #packed[#packed]
    else
      unread_parts[#unread_parts + 1] = name
    end
  end
end

local open, too_many = {}, redis.call('HLEN', sessions) > most_sessions
if not too_many then
  local records = redis.call('HGETALL', sessions)
  for position = 1, #records, 2 do
    local uid = records[position]
    open[#open + 1] = records[position + 1]
    open[#open + 1] = redis.call('HGET', amounts .. latest, uid)
    open[#open + 1] = redis.call('HGET', amounts .. (previous or ''), uid)
  end
end
return {settled, {latest, previous}, past, known and 1 or 0, rows, packed, open,
  {version or '0', folds or '0'}, unread_hours, unread_parts, too_many and 1 or 0}
