-- Sets the cumulative amounts of sessions in one period of one account. An amount replaces the stored one only under
-- a newer revision, so calls may be repeated and may come in any order. Everything is checked before the first write,
-- since Redis does not undo writes.
--
-- KEYS  head, period, amounts, sessions, ended, ledger, hours
-- ARGV  fencing token, counter, instant, period's start, then for each session:
--         uid, amount, action and, unless the action is `hold`, kind, namespace, pod, note, record, dimensions, points
--       hold   sets the amount
--       open   sets the amount and stores the session as open
--       post   sets the amount and posts its unposted part as a ledger entry of this kind; stores the record, if one is
--              given
--       move   as post; the session goes on under another account, so its record is removed here
--       close  as post; the session has ended, and its record is stored as ended
--       finalize_period  as move; the pod object is deleted, so the amount is added to the sum of finalized sessions.
--              Any later action but this one and finalize takes it out of the sum
--       finalize  as finalize_period; the record of the session's end is removed
-- Each point is "hour instant billed core memory used;" with cumulative amounts. The part of them after the last
-- stored point is attributed to the point's hour. Points before the stored point are skipped, except the last given
-- point, which always counts.
-- Returns total, granted, gone, exhausted, struck, terms, version.
local head, period, amounts, sessions, ended, ledger, hours = unpack(KEYS)
local fencing_token, counter, instant, start = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local refused = refusal(head, fencing_token)
if refused then
  return refused
end
local sums = sums_of(period)
if not sums[1] then
  return redis.error_reply('EMPTY this period is not open')
end
local total_high, total_low = signed(sums[1])
local gone_high, gone_low = limbs(sums[3])
if not total_high or not gone_high then
  return redis.error_reply('DATA the sums in ' .. period .. ' cannot be read')
end
expect_types(ledger, sessions, ended)  -- the amounts and the hours are read below, before the first write

local POSTING = {post = true, move = true, close = true, finalize_period = true, finalize = true}
local FINALIZING = {finalize_period = true, finalize = true}
local uids, places, position, last = {}, {}, 5, #ARGV
while position <= last do
  uids[#uids + 1], places[#places + 1] = ARGV[position], position
  position = position + (ARGV[position + 2] == 'hold' and 3 or 10)
end
if #uids == 0 then
  return standing(head, period)
end

local PATTERN = '^(%d+) (%d+) (%d+) (%d+) (%a)()'  -- the last capture is the place of the stored point
local rows, written, entries, seen = {}, {}, {}, {}
local token_number, counter_number = tonumber(fencing_token), tonumber(counter)
local revision = fencing_token .. ' ' .. counter .. ' '
local known = redis.call('HMGET', amounts, unpack(uids))
for index, uid in ipairs(uids) do
  local place = places[index]
  local amount, action, item = ARGV[place + 1], ARGV[place + 2], nil
  local high, low = limbs(amount)
  if not high then
    return redis.error_reply('AMOUNT ' .. tostring(amount) .. ' is no whole number from 0 to 10^24 - 1')
  end
  if POSTING[action] or action == 'open' then
    item = {uid = uid, action = action, kind = ARGV[place + 3], namespace = ARGV[place + 4], pod = ARGV[place + 5],
      note = ARGV[place + 6], record = ARGV[place + 7], points = read_points(ARGV[place + 9])}
    if not item.points then
      return redis.error_reply('CUTS of ' .. uid .. ' cannot be read: ' .. tostring(ARGV[place + 9]))
    end
  elseif action ~= 'hold' then
    return redis.error_reply('ACTION ' .. tostring(action) .. ' is unknown')
  end
  if seen[uid] then
    return redis.error_reply('TWICE ' .. uid .. ' stands twice in one settlement')
  end
  seen[uid] = true
  local old_token, old_counter, old, posted, flag, point = -1, -1, '0', '0', 'o', ''
  if known[index] then
    local at
    old_token, old_counter, old, posted, flag, at = string.match(known[index], PATTERN)
    if not old_token then
      return redis.error_reply('DATA the amount of ' .. uid .. ' in ' .. amounts .. ' cannot be read: ' .. known[index])
    end
    old_token, old_counter, point = old_token + 0, old_counter + 0, string.sub(known[index], at)
    if string.find(point, '@', 1, true) then
      point = without_note(point)
    end
  end
  local newer = token_number > old_token or (token_number == old_token and counter_number > old_counter)
  local over = (flag == 'g' and FINALIZING[action]) or (flag == 'c' and not POSTING[action])
  if newer and not over then
    local old_high, old_low = limbs_of_digits(old)
    local posted_high, posted_low = limbs_of_digits(posted)
    if not old_high or not posted_high then
      return redis.error_reply('DATA the amount of ' .. uid .. ' in ' .. amounts .. ' cannot be read: ' .. known[index])
    end
    if flag == 'g' then
      -- An earlier leader finalized the session by an old view of the cluster. The leader that settles it again has
      -- observed its pod.
      gone_high, gone_low = carry(gone_high - old_high, gone_low - old_low)
      flag = 'o'
    end
    total_high, total_low = carry(total_high + high - old_high, total_low + low - old_low)
    if POSTING[action] then
      item.entry = decimal(carry(high - posted_high, low - posted_low))
      if #item.points > 0 then
        point = take_points(rows, ARGV[place + 8], item.points, point, posted)
      end
      posted = amount
      if flag == 'c' then
        item.kind = 'correction'
      end
      item.silent = item.entry == '0' and not (item.kind == 'close' and flag == 'o')
      if FINALIZING[action] then
        gone_high, gone_low = carry(gone_high + high, gone_low + low)
        flag = 'g'
      elseif action == 'close' then
        flag = 'c'
      end
    end
    written[#written + 1], written[#written + 2] = uid, revision .. amount .. ' ' .. posted .. ' ' .. flag .. point
    entries[#entries + 1] = item
  end
end
-- A session that turns out to have ended earlier lowers the total. If a correction has lowered it before, it may
-- become less than 0.
if total_high < -HIGH_LIMIT or total_high >= HIGH_LIMIT or gone_high >= HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the total passes 24 digits')
end
if #written == 0 then
  return standing(head, period)
end
local grown = grown_rows(hours, rows, instant)

sums[7] = changed(head, fencing_token, 'settled', instant)
sums[1], sums[3] = decimal(total_high, total_low), decimal(gone_high, gone_low)
redis.call('HSET', period, 'total', sums[1], 'gone', sums[3])
redis.call('HSET', amounts, unpack(written))
write_rows(hours, grown, head, instant)
for _, item in ipairs(entries) do
  if item.action == 'open' or (item.action == 'post' and item.record ~= '') then
    redis.call('HSET', sessions, item.uid, item.record)
  elseif item.action == 'close' then
    redis.call('HSET', ended, item.uid, item.record)
  elseif item.action == 'finalize' then
    redis.call('HDEL', ended, item.uid)
  end
  if item.action == 'close' or FINALIZING[item.action] or item.action == 'move' then
    redis.call('HDEL', sessions, item.uid)
  end
  if item.entry and not item.silent then
    redis.call('XADD', ledger, '*', 'k', item.kind, 'p', start, 'a', item.entry, 't', instant, 'u', item.uid,
      'n', item.namespace, 'd', item.pod, 'x', item.note)
  end
end
return sums
