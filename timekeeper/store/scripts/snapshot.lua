-- An account's period as it is at one moment. Writes nothing.
--
-- KEYS  head, periods, period, amounts, sessions, ended, grants, corrections, pots, ledger, segments, hours,
--       folded
-- ARGV  the months whose folded hours are wanted
-- Returns the content of each hash, the id of the ledger's last entry (entries never change, so that those up to it can
-- be read afterwards), the hours, and what was folded of each month.
local found = {}
for index = 1, 9 do
  found[index] = redis.call('HGETALL', KEYS[index])
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
found[11] = redis.call('HGETALL', KEYS[12])
found[12] = redis.call('HMGET', KEYS[13], unpack(ARGV))
return found
