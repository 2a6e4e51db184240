-- What an account's use is put down to, and its open sessions with what is not put down to hours yet, at one moment.
--
-- KEYS  head, hours, folded, sessions, and what the keys of amounts begin with: that of a period ends with its start
-- ARGV  the months to read of what is folded; all of them where none is named
-- Returns when its sessions were last settled, the starts of the latest period and of the one before, the rows as field
-- and value, the folded months, then for each open session its record and what stands of it in the two periods; nothing
-- where the account has no period.
local head, hours, folded, sessions, amounts = unpack(KEYS)
local settled, latest, previous = unpack(redis.call('HMGET', head, 'settled', 'period', 'previous'))
if not latest then
  return false
end
local open = {}
local records = redis.call('HGETALL', sessions)
for position = 1, #records, 2 do
  local uid = records[position]
  open[#open + 1] = records[position + 1]
  open[#open + 1] = redis.call('HGET', amounts .. latest, uid)
  open[#open + 1] = redis.call('HGET', amounts .. (previous or ''), uid)
end
local months = #ARGV == 0 and redis.call('HVALS', folded) or redis.call('HMGET', folded, unpack(ARGV))
return {settled, {latest, previous}, redis.call('HGETALL', hours), months, open}
