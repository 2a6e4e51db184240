-- Restores a period of an account to a checkpoint, after the store went back to an earlier state. A repeated call
-- changes no sum and writes no ledger entry.
--
-- Sessions that the leader does not compute again are finalized with their stored amounts. The checkpoint has their
-- later spending: its excess over the store's sum of finalized sessions is added to the period as one ledger entry.
--
-- KEYS  head, period, amounts, sessions, ended, ledger, hours
-- ARGV  fencing token, instant, the period's start, the checkpoint's sum of finalized sessions, the version that the
--       account has at least afterwards, the sum of the sessions that the store holds as finalized but that the leader computes again, the
--       note of the ledger entries, the hour that what is added is attributed to, then the uid, namespace and pod of
--       each session to finalize
-- Returns the added amount, then total, granted, gone, exhausted, struck, terms, version.
local head, period, amounts, sessions, ended, ledger, hours = unpack(KEYS)
local fencing_token, instant, start, checkpoint, version, apart, note, hour = unpack(ARGV, 1, 8)
local refused = refusal(head, fencing_token)
if refused then
  return refused
end
local sums = redis.call('HMGET', period, 'total', 'gone', 'checkpoint')
if not sums[1] then
  return redis.error_reply('EMPTY this period is not open')
end
local is_behind = tonumber(redis.call('HGET', head, 'version') or '0') < tonumber(version)
local want_high, want_low = limbs(checkpoint)
local apart_high, apart_low = limbs(apart)
if not want_high or not apart_high then
  return redis.error_reply('AMOUNT ' .. checkpoint .. ' or ' .. apart .. ' is no whole number from 0 to 10^24 - 1')
end

expect_types(ledger, amounts, sessions, ended)
local total_high, total_low = signed(sums[1])
local gone_high, gone_low = limbs(sums[2])
local opened_high, opened_low = limbs(sums[3])
if not total_high or not gone_high or not opened_high then
  return redis.error_reply('DATA the sums in ' .. period .. ' cannot be read')
end
local closing = {}
for position = 9, #ARGV, 3 do
  local known = redis.call('HGET', amounts, ARGV[position])
  if known then
    local _, _, amount, posted, flag, point = string.match(known, '^(%d+) (%d+) (%d+) (%d+) (%a)(.*)$')
    if flag ~= 'g' then
      local high, low = limbs(amount)
      local posted_high, posted_low = limbs(posted)
      if not high or not posted_high then
        return redis.error_reply('DATA the amount of ' .. ARGV[position] .. ' cannot be read: ' .. known)
      end
      gone_high, gone_low = carry(gone_high + high, gone_low + low)
      closing[#closing + 1] = {uid = ARGV[position], namespace = ARGV[position + 1], pod = ARGV[position + 2],
        amount = amount, flag = flag, point = without_note(point),
        entry = decimal(carry(high - posted_high, low - posted_low))}
    end
  end
end
local added = '0'
local more_high, more_low = carry(want_high + apart_high - gone_high, want_low + apart_low - gone_low)
if more_high >= 0 and more_high + more_low > 0 then
  added = decimal(more_high, more_low)
  total_high, total_low = carry(total_high + more_high, total_low + more_low)
  gone_high, gone_low = carry(gone_high + more_high, gone_low + more_low)
  opened_high, opened_low = carry(opened_high + more_high, opened_low + more_low)
end
if total_high >= HIGH_LIMIT or gone_high >= HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the total passes 24 digits')
end

local rows = {}
for _, item in ipairs(closing) do
  add_to_row(rows, hour, cjson.encode({item.namespace}), {}, {item.entry, '0', '0', '-'})
end
if added ~= '0' then
  add_to_row(rows, hour, cjson.encode({''}), {}, {added, '0', '0', '-'})
end
local grown = grown_rows(hours, rows, instant)

write_though_full(head)
if is_behind then
  redis.call('HSET', head, 'version', version)
end
changed(head, fencing_token)
change_the_past(head, 'restored at ' .. instant)
redis.call('HSET', period, 'total', decimal(total_high, total_low), 'gone', decimal(gone_high, gone_low),
  'checkpoint', decimal(opened_high, opened_low))
for _, item in ipairs(closing) do
  redis.call('HSET', amounts, item.uid, fencing_token .. ' 0 ' .. item.amount .. ' ' .. item.amount .. ' g' .. item.point)
  if item.flag == 'o' or item.entry ~= '0' then
    redis.call('XADD', ledger, '*', 'k', 'close', 'p', start, 'a', item.entry, 't', instant, 'u', item.uid,
      'n', item.namespace, 'd', item.pod, 'x', note)
  end
end
for position = 9, #ARGV, 3 do
  redis.call('HDEL', sessions, ARGV[position])
  redis.call('HDEL', ended, ARGV[position])
end
if added ~= '0' then
  redis.call('XADD', ledger, '*', 'k', 'checkpoint', 'p', start, 'a', added, 't', instant, 'u', '', 'n', '', 'd', '',
    'x', note)
end
write_rows(hours, grown, head, instant)
return standing_after(added, head, period)
