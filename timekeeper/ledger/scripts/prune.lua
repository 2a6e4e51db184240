-- Removes old data of an account: periods with their hashes, orders and ledger entries, and packed days of old months.
--
-- KEYS  head, periods, folded, ledger, segments, order of segments, grants, corrections, then the further keys of the
--       periods to remove
-- ARGV  fencing token, the start of the earliest period that stays, the number of periods to remove, their starts,
--       then the names of the packed days to remove
-- Returns 1.
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

-- Returns the names of the orders that were applied in removed periods. `applied` is the key of the grants or
-- corrections.
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

-- Returns the segments to remove, each with its member of the order, and whether any other segment stays.
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

-- Returns the id of the first ledger entry that belongs to a period that stays; nil if there is none.
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

-- Ledger entries are in the order of time. The first entry of a period that stays is kept, and so are all entries
-- after it, and all entries of its segment.
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
