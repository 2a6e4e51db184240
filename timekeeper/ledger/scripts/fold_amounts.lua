-- Folds the amounts of sessions that are not settled any more into sums of their period, or marks them for folding. An
-- amount that differs from the caller's text stays as it is.
--
-- KEYS  period, amounts, head
-- ARGV  fencing token, the instant of the mark in seconds since 1970, then for each session: `note` to mark its
--       amount or `fold` to fold it, its uid, and the stored text of its amount as the caller has read it
-- Returns the number of folded amounts.
local period, amounts, head = unpack(KEYS)
local refused = refusal(head, ARGV[1])
if refused then
  return refused
end
local sums = redis.call('HMGET', period, 'folded', 'passed', 'total')
if not sums[3] then
  return redis.error_reply('EMPTY this period is not open')
end
local folded, passed = {signed(sums[1] or '0')}, {signed(sums[2] or '0')}
if not folded[1] or not passed[1] then
  return redis.error_reply('DATA the sums in ' .. period .. ' cannot be read')
end
local noted, gone = {}, {}
for position = 3, #ARGV, 3 do
  local what, uid, expected = ARGV[position], ARGV[position + 1], ARGV[position + 2]
  if redis.call('HGET', amounts, uid) == expected then
    local amount, posted, flag = string.match(expected, '^%d+ %d+ (%d+) (%d+) (%a)')
    local high, low = limbs(amount)
    if what == 'note' then
      noted[#noted + 1], noted[#noted + 2] = uid, expected .. ' @' .. ARGV[2]
    elseif high and amount == posted then
      local sum = flag == 'g' and folded or passed
      sum[1], sum[2] = carry(sum[1] + high, sum[2] + low)
      gone[#gone + 1] = uid
    end
  end
end
if folded[1] >= HIGH_LIMIT or passed[1] >= HIGH_LIMIT then
  return redis.error_reply('OVERFLOW the sum of folded amounts passes 24 digits')
end
write_though_full(head)
for _, uid in ipairs(gone) do
  redis.call('HDEL', amounts, uid)
end
if #gone > 0 then
  redis.call('HSET', period, 'folded', decimal(folded[1], folded[2]), 'passed', decimal(passed[1], passed[2]))
end
if #noted > 0 then
  redis.call('HSET', amounts, unpack(noted))
end
return #gone
