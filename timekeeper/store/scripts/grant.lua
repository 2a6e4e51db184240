-- Adds a grant to a period, once for each name.
--
-- KEYS  head, period, grants, ledger
-- ARGV  epoch, instant, start, name, amount, note
-- Returns whether it was added now, then total, granted, gone, exhausted.
local head, period, grants, ledger = unpack(KEYS)
local epoch, instant, start, name, amount, note = unpack(ARGV)
local refused = refusal(head, epoch)
if refused then
  return refused
end
local granted = redis.call('HGET', period, 'granted')
if not granted then
  return redis.error_reply('EMPTY this period is not open')
end
local high, low = limbs(amount)
if not high then
  return redis.error_reply('AMOUNT ' .. amount .. ' is no whole number from 0 to 10^24 - 1')
end
local granted_high, granted_low = limbs(granted)
high, low = carry(high + granted_high, low + granted_low)
if high >= HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the grants leave 0 to 10^24 - 1')
end
local added = redis.call('HSETNX', grants, name, start .. ' ' .. amount)
if added == 1 then
  redis.call('HSET', head, 'epoch', epoch)
  redis.call('HSET', period, 'granted', decimal(high, low))
  redis.call('XADD', ledger, '*', 'k', 'grant', 'p', start, 'a', amount, 't', instant, 'u', '', 'n', '', 'd', name,
    'x', note)
end
local sums = standing(period)
return {added, sums[1], sums[2], sums[3], sums[4]}
