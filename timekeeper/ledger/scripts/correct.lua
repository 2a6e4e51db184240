-- Applies a correction to the spending of a period. A correction whose name was applied before has no effect.
--
-- KEYS  head, period, corrections, ledger, hours
-- ARGV  fencing token, instant, the period's start, name, amount, namespace, note, the hour and the dimensions of its
--       use, and 1 if the store had applied it before its data was lost: the correction is then applied even if the
--       spending becomes less than 0
-- Returns 1 if it was applied now, else 0; then total, granted, gone, exhausted, struck, terms, version.
local head, period, corrections, ledger, hours = unpack(KEYS)
local fencing_token, instant, start, name, amount, namespace, note, hour, dimensions, again = unpack(ARGV)
local total, refused = open_sum(head, period, fencing_token, 'total')
if refused then
  return refused
end
local high, low = signed(amount)
if not high then
  return redis.error_reply('AMOUNT ' .. amount .. ' is no whole number of at most 24 digits')
end
expect_types(ledger, corrections)
local applied = 0
if redis.call('HEXISTS', corrections, name) == 0 then
  local total_high, total_low = signed(total)
  if not total_high then
    return redis.error_reply('DATA total in ' .. period .. ' is no whole number of at most 24 digits: ' .. total)
  end
  local takes = high < 0 and again ~= '1'
  high, low = carry(high + total_high, low + total_low)
  if takes and high < 0 then
    return redis.error_reply('OVERDRAWN ' .. total)
  end
  if high < -HIGH_LIMIT or high >= HIGH_LIMIT then
    return redis.error_reply('OVERFLOW the total passes 24 digits')
  end
  local rows = {}
  add_to_row(rows, hour, dimensions, {}, {amount, '0', '0', '-'})
  local grown = grown_rows(hours, rows, instant)
  applied = 1
  changed(head, fencing_token)
  redis.call('HSET', corrections, name, start .. ' ' .. amount)
  redis.call('HSET', period, 'total', decimal(high, low))
  redis.call('XADD', ledger, '*', 'k', 'correction', 'p', start, 'a', amount, 't', instant, 'u', '', 'n', namespace,
    'd', name, 'x', note)
  write_rows(hours, grown, head, instant)
end
return standing_after(applied, head, period)
