-- Sets right what was spent in a period, once for each name.
--
-- KEYS  head, period, corrections, ledger, hours
-- ARGV  epoch, instant, start, name, amount, namespace, note, the hour of its use, what that is put down to
-- Returns whether it was applied now, then total, granted, gone, exhausted, struck, version.
local head, period, corrections, ledger, hours = unpack(KEYS)
local epoch, instant, start, name, amount, namespace, note, hour, put_down = unpack(ARGV)
local refused = refusal(head, epoch)
if refused then
  return refused
end
local total = redis.call('HGET', period, 'total')
if not total then
  return redis.error_reply('EMPTY this period is not open')
end
local high, low = signed(amount)
if not high then
  return redis.error_reply('AMOUNT ' .. amount .. ' is no whole number of at most 24 digits')
end
local applied = 0
if redis.call('HEXISTS', corrections, name) == 0 then
  local total_high, total_low = limbs(total)
  high, low = carry(high + total_high, low + total_low)
  if high < 0 or high >= HIGH_LIMIT then
    return redis.error_reply('OVERFLOW ' .. total .. ' microGPU-seconds were spent in this period, and what is spent stays '
      .. 'from 0 to 10^24 - 1')
  end
  applied = 1
  changed(head, epoch)
  redis.call('HSET', corrections, name, start .. ' ' .. amount)
  redis.call('HSET', period, 'total', decimal(high, low))
  redis.call('XADD', ledger, '*', 'k', 'correction', 'p', start, 'a', amount, 't', instant, 'u', '', 'n', namespace,
    'd', name, 'x', note)
  local rows = {}
  add_to_row(rows, hour .. ' ' .. put_down, {}, {amount, '0', '0', '-'})
  write_rows(hours, rows)
end
return standing_after(applied, head, period)
