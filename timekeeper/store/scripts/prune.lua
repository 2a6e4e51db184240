-- Forgets what of an account is too old: whole periods with all that is theirs, folded months, entries.
--
-- KEYS  head, periods, folded, ledger, segments, order of segments, grants, corrections, then the further keys of the periods that go
-- ARGV  epoch, the start of the earliest period that stays, how many periods go, their starts, the names of the
--       packed days that go
local head, periods, folded, ledger, segments, order, grants, corrections = unpack(KEYS, 1, 8)
local refused = refusal(head, ARGV[1])
if refused then
  return refused
end
write_though_full(head)
change_the_past(head, 'pruned before ' .. ARGV[2])
local gone = {}
for position = 4, 3 + tonumber(ARGV[3]) do
  gone[ARGV[position]] = true
  redis.call('HDEL', periods, ARGV[position])
end
for position = 4 + tonumber(ARGV[3]), #ARGV do
  redis.call('HDEL', folded, ARGV[position])
end
for position = 9, #KEYS do
  redis.call('DEL', KEYS[position])
end
for _, applied in ipairs({grants, corrections}) do
  local known = redis.call('HGETALL', applied)
  for position = 1, #known, 2 do
    if gone[string.match(known[position + 1], '^%d+')] then
      redis.call('HDEL', applied, known[position])
    end
  end
end

local earliest, after = ARGV[2], '-'
local function stays(period)
  return #period > #earliest or (#period == #earliest and period >= earliest)
end

-- Entries come in the order of time: the first one of a period that stays, and all after it, stay, and with it those
-- that are packed together with it.
for _, name in ipairs(redis.call('HKEYS', segments)) do
  if not stays(string.match(name, ' (%d+)$')) then
    redis.call('HDEL', segments, name)
    redis.call('ZREM', order, in_order(name))
  end
end
if redis.call('EXISTS', segments) == 1 then
  return 1
end
while true do
  local entries = redis.call('XRANGE', ledger, after, '+', 'COUNT', 100)
  for _, entry in ipairs(entries) do
    local period = ''
    for position = 1, #entry[2], 2 do
      if entry[2][position] == 'p' then
        period = entry[2][position + 1]
      end
    end
    if stays(period) then
      redis.call('XTRIM', ledger, 'MINID', entry[1])
      return 1
    end
    after = '(' .. entry[1]
  end
  if #entries == 0 then
    redis.call('XTRIM', ledger, 'MAXLEN', 0)
    return 1
  end
end
