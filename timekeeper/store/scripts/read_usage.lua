-- What an account's use is put down to, and its open sessions with what is not put down to hours yet, at one moment.
--
-- KEYS  head, hours, folded, sessions, amounts of the latest period, amounts of the one before
-- ARGV  the months to read of what is folded; all of them where none is named
-- Returns when its sessions were last settled, the rows as field and value, the folded months, then for each open
-- session its record and what stands of it in the two periods.
local head, hours, folded, sessions, latest, previous = unpack(KEYS)
local open = {}
local records = redis.call('HGETALL', sessions)
for position = 1, #records, 2 do
  local uid = records[position]
  open[#open + 1] = records[position + 1]
  open[#open + 1] = redis.call('HGET', latest, uid)
  open[#open + 1] = redis.call('HGET', previous, uid)
end
local months = #ARGV == 0 and redis.call('HVALS', folded) or redis.call('HMGET', folded, unpack(ARGV))
return {redis.call('HGET', head, 'settled'), redis.call('HGETALL', hours), months, open}
