-- Removes old data of an account: whole periods with their hashes, orders and entries, and folded months.
--
-- KEYS  head, periods, folded, ledger, segments, order of segments, grants, corrections, then the further keys of the
--       periods to remove
-- ARGV  fencing token, the start of the earliest period that stays, the number of periods to remove, their starts, the names of
--       the packed days to remove
local head, periods, folded, ledger, segments, order, grants, corrections = unpack(KEYS, 1, 8)
local refused = refusal(head, ARGV[1])
if refused then
  return refused
end
expect_hashes(periods, folded)
redis.call('ZCARD', order)
local earliest, gone, last_gone = ARGV[2], {}, 3 + tonumber(ARGV[3])
for position = 4, last_gone do
  gone[ARGV[position]] = true
end

-- The names of the orders that were applied in removed periods.
local function applied_in_gone(applied)
  local names, known = {}, redis.call('HGETALL', applied)
  for position = 1, #known, 2 do
    if gone[string.match(known[position + 1], '^%d+')] then
      names[#names + 1] = known[position]
    end
  end
  return names
end

local function stays(period)
  return #period > #earliest or (#period == #earliest and period >= earliest)
end

-- The segments to remove, with their places in the order, and whether any stays.
local function old_segments()
  local old, any_stays = {}, false
  for _, name in ipairs(redis.call('HKEYS', segments)) do
    local period, member = string.match(name, ' (%d+)$'), in_order(name)
    if not period or stays(period) then
      any_stays = true
    else
      old[#old + 1] = {name = name, member = member}
    end
  end
  return old, any_stays
end

local function period_of(entry)
  for position = 1, #entry[2], 2 do
    if entry[2][position] == 'p' then
      return entry[2][position + 1]
    end
  end
  return ''
end

-- The first entry of a period that stays; nothing where there is none.
local function first_that_stays()
  local after = '-'
  while true do
    local entries = redis.call('XRANGE', ledger, after, '+', 'COUNT', 100)
    for _, entry in ipairs(entries) do
      if stays(period_of(entry)) then
        return entry[1]
      end
      after = '(' .. entry[1]
    end
    if #entries == 0 then
      return nil
    end
  end
end

-- Entries come in the order of time: the first one of a period that stays, and all after it, stay, and with it those
-- that are packed together with it.
local granted, corrected = applied_in_gone(grants), applied_in_gone(corrections)
local old, any_stays = old_segments()
redis.call('XLEN', ledger)
local first_entry = not any_stays and first_that_stays()

write_though_full(head)
change_the_past(head, 'pruned before ' .. earliest)
for position = 4, last_gone do
  redis.call('HDEL', periods, ARGV[position])
end
for position = last_gone + 1, #ARGV do
  redis.call('HDEL', folded, ARGV[position])
end
for position = 9, #KEYS do
  redis.call('DEL', KEYS[position])
end
for _, name in ipairs(granted) do
  redis.call('HDEL', grants, name)
end
for _, name in ipairs(corrected) do
  redis.call('HDEL', corrections, name)
end
for _, segment in ipairs(old) do
  redis.call('HDEL', segments, segment.name)
  redis.call('ZREM', order, segment.member)
end
if first_entry then
  redis.call('XTRIM', ledger, 'MINID', first_entry)
elseif not any_stays then
  redis.call('XTRIM', ledger, 'MAXLEN', 0)
end
return 1
