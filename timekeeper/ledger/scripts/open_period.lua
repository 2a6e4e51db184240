-- Opens a period of an account. It also creates the account if the store lacks it and the caller does not expect it
-- in the store. A repeated call does not open the period again.
--
-- KEYS  head, periods, period, ledger, hours
-- ARGV  fencing token, instant, start, end, checkpoint, exhausted, whether the caller knows the account, the version that the
--       checkpoint is of, the hour and dimensions that the checkpoint is attributed to, and 1 where the balance of the
--       period before is to be closed
-- Returns whether the account was not in the store, then total, granted, gone, exhausted, struck, terms, version.
local head, periods, period, ledger, hours = unpack(KEYS)
local fencing_token, instant, start, finish, checkpoint, exhausted, expected, version, hour, dimensions, carries = unpack(ARGV)
if not limbs(checkpoint) then
  return redis.error_reply('AMOUNT ' .. checkpoint .. ' is no whole number from 0 to 10^24 - 1')
end
local unknown = redis.call('EXISTS', head) == 0
local refused = (not unknown or expected == '1') and refusal(head, fencing_token)
if refused then
  return refused
end
expect_types(ledger, periods, period)
local rows = {}
if checkpoint ~= '0' then
  add_to_row(rows, hour, dimensions, {}, {checkpoint, '0', '0', '-'})
end
local grown = grown_rows(hours, rows, instant)
local latest = redis.call('HGET', head, 'period') or ''
write_though_full(head)
if tonumber(version) > tonumber(redis.call('HGET', head, 'version') or '0') then
  redis.call('HSET', head, 'version', version)
  if unknown then
    redis.call('HSET', head, 'restoring', '0')
  end
end
changed(head, fencing_token)
if unknown then
  change_the_past(head, 'begun at ' .. instant)
end
if #start > #latest or (#start == #latest and start > latest) then
  redis.call('HSET', head, 'period', start, 'previous', latest)
end
if redis.call('HSETNX', periods, start, finish) == 1 then
  redis.call('HSET', period, 'total', checkpoint, 'checkpoint', checkpoint, 'granted', '0', 'gone', checkpoint,
    'exhausted', exhausted)
  if carries == '1' then
    redis.call('HSET', period, 'struck', '')
  end
  if checkpoint ~= '0' then
    redis.call('XADD', ledger, '*', 'k', 'checkpoint', 'p', start, 'a', checkpoint, 't', instant, 'u', '',
      'n', '', 'd', '', 'x', 'the store had been lost')
    write_rows(hours, grown, head, instant)
  end
end
return standing_after(unknown and 1 or 0, head, period)
