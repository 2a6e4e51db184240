-- Sets credits of a period. A credit's amount is the money that was carried over into the period or, once the credit
-- has expired, the part that was spent. Each difference to the stored amount is added to the period's granted sum and
-- becomes a ledger entry. A repeated call has no effect.
--
-- KEYS  head, period, credits (the key pots:START), ledger
-- ARGV  fencing token, instant, the period's start, the spending of the preceding period (empty if nothing is carried
--       over), that period's allowance and the most that it may roll over as "allowance rollover" (empty, too), then
--       for each credit:
--         name, amount, expiry, the period's spending when the credit came, flag (o for open, l for expired), and the
--         kind and the note of the ledger entry
-- Returns total, granted, gone, exhausted, struck, terms, version.
local head, period, credits, ledger = unpack(KEYS)
local fencing_token, instant, start, struck, terms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local granted, refused = open_sum(head, period, fencing_token, 'granted')
if refused then
  return refused
end
local granted_high, granted_low = signed(granted)
if not granted_high then
  return redis.error_reply('DATA granted in ' .. period .. ' is no whole number of at most 24 digits: ' .. granted)
end
local changes = {}
for position = 6, #ARGV, 7 do
  local name, amount, expires, since, flag, kind, note = unpack(ARGV, position, position + 6)
  local high, low = limbs(amount)
  if not high then
    return redis.error_reply('AMOUNT ' .. tostring(amount) .. ' is no whole number from 0 to 10^24 - 1')
  end
  local old, old_flag = '0', ''
  local known = redis.call('HGET', credits, name)
  if known then
    old, old_flag = string.match(known, '^(%d+) %d+ %d+ (%a)$')
  end
  if old_flag ~= 'l' then
    local old_high, old_low = limbs(old)
    if not old_high then
      return redis.error_reply('DATA the credit ' .. name .. ' in ' .. credits .. ' cannot be read: ' .. known)
    end
    high, low = carry(high - old_high, low - old_low)
    granted_high, granted_low = carry(granted_high + high, granted_low + low)
    changes[#changes + 1] = {name = name, text = amount .. ' ' .. expires .. ' ' .. since .. ' ' .. flag,
      difference = decimal(high, low), kind = kind, note = note}
  end
end
if granted_high >= HIGH_LIMIT or granted_high < -HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the grants pass 24 digits')
end
expect_types(ledger, credits)
changed(head, fencing_token)
redis.call('HSET', period, 'granted', decimal(granted_high, granted_low))
if struck ~= '' then
  redis.call('HSET', period, 'struck', struck)
end
if terms ~= '' then
  redis.call('HSET', period, 'terms', terms)
end
for _, change in ipairs(changes) do
  redis.call('HSET', credits, change.name, change.text)
  if change.difference ~= '0' then
    redis.call('XADD', ledger, '*', 'k', change.kind, 'p', start, 'a', change.difference, 't', instant, 'u', '',
      'n', '', 'd', change.name, 'x', change.note)
  end
end
return standing(head, period)
