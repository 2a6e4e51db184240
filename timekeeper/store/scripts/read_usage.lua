-- What an account's use is put down to, and its open sessions with what is not put down to hours yet, at one moment.
--
-- KEYS  head, hours, folded, sessions, and what the keys of amounts begin with: that of a period ends with its start
-- ARGV  what the caller knows of the past or nothing, the hour up to which it then needs nothing that is put down, and
--       the months to read of what is folded; all of them where none is named
-- Returns when its sessions were last settled, the starts of the latest period and of the one before, the past, whether
-- that is known and no later hour is folded, the rows as field and value, the folded months, then for each open session its record and what
-- stands of it in the two periods; nothing where the account has no period.
local head, hours, folded, sessions, amounts = unpack(KEYS)
local settled, latest, previous, past, until_hour =
  unpack(redis.call('HMGET', head, 'settled', 'period', 'previous', 'past', 'folded'), 1, 5)
if not latest then
  return false
end
past = past or '-'
local open = {}
local records = redis.call('HGETALL', sessions)
for position = 1, #records, 2 do
  local uid = records[position]
  open[#open + 1] = records[position + 1]
  open[#open + 1] = redis.call('HGET', amounts .. latest, uid)
  open[#open + 1] = redis.call('HGET', amounts .. (previous or ''), uid)
end
local rows, months = redis.call('HGETALL', hours), {}
local since = tonumber(ARGV[2])
local known = ARGV[1] == past and tonumber(until_hour or '0') <= since
if known then
  local all = rows
  rows = {}
  for position = 1, #all, 2 do
    if tonumber(string.match(all[position], '^%d+')) >= since then
      rows[#rows + 1] = all[position]
      rows[#rows + 1] = all[position + 1]
    end
  end
elseif #ARGV == 2 then
  months = redis.call('HVALS', folded)
else
  months = redis.call('HMGET', folded, unpack(ARGV, 3))
end
return {settled, {latest, previous}, past, known and 1 or 0, rows, months, open}
