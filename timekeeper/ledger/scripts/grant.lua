-- Adds a grant to a period, or takes money away where it is negative, once for each name. A grant with an expiry of its
-- own is also stored among the period's credits. Where the next period is open, its closing balance counts as not computed.
--
-- KEYS  head, period, grants, ledger, credits (the key pots:START), and the next period where it is open
-- ARGV  fencing token, instant, start, name, amount, note, its expiry or empty, the period's spending when it was made
-- Returns whether it was added now, then total, granted, gone, exhausted, struck, terms, version.
local head, period, grants, ledger, credits, following = unpack(KEYS)
local fencing_token, instant, start, name, amount, note, expires, since = unpack(ARGV)
local granted, refused = open_sum(head, period, fencing_token, 'granted')
if refused then
  return refused
end
local high, low = signed(amount)
if not high then
  return redis.error_reply('AMOUNT ' .. amount .. ' is no whole number of at most 24 digits')
end
local granted_high, granted_low = signed(granted)
if not granted_high then
  return redis.error_reply('DATA granted in ' .. period .. ' is no whole number of at most 24 digits: ' .. granted)
end
high, low = carry(high + granted_high, low + granted_low)
if high >= HIGH_LIMIT or high < -HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the grants pass 24 digits')
end
expect_types(ledger, grants, credits, following or period)
local added = 1 - redis.call('HEXISTS', grants, name)
if added == 1 then
  changed(head, fencing_token)
  redis.call('HSET', grants, name, start .. ' ' .. amount)
  redis.call('HSET', period, 'granted', decimal(high, low))
  if following then
    redis.call('HSET', following, 'struck', '')
  end
  if expires ~= '' then
    redis.call('HSET', credits, name, amount .. ' ' .. expires .. ' ' .. since .. ' o')
  end
  redis.call('XADD', ledger, '*', 'k', 'grant', 'p', start, 'a', amount, 't', instant, 'u', '', 'n', '', 'd', name,
    'x', note)
end
return standing_after(added, head, period)
