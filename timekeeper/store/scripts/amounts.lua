-- Whole numbers of up to 24 digits as two limbs, the low one of nine digits: each is exact in a double.
-- Put before each script that adds.
local LIMB = 1000000000
local HIGH_LIMIT = 1000000000000000

-- The two limbs of a decimal string; nothing where it is no whole number from 0 to 10^24 - 1.
local function limbs(text)
  if type(text) ~= 'string' or #text == 0 or #text > 24 or string.find(text, '[^0-9]') then
    return nil
  end
  if #text <= 9 then
    return 0, tonumber(text)
  end
  return tonumber(string.sub(text, 1, -10)), tonumber(string.sub(text, -9))
end

-- Limbs of any sign and size to limbs whose low one is from 0 to LIMB - 1.
local function carry(high, low)
  local over = math.floor(low / LIMB)
  return high + over, low - over * LIMB
end

-- Limbs of any sign, held to what 24 digits can say.
local function saturated(high, low)
  if high >= HIGH_LIMIT then
    return HIGH_LIMIT - 1, LIMB - 1
  end
  if high < -HIGH_LIMIT or (high == -HIGH_LIMIT and low == 0) then
    return -HIGH_LIMIT, 1
  end
  return high, low
end

-- As limbs, of a whole number that may be negative.
local function signed(text)
  if type(text) ~= 'string' or string.sub(text, 1, 1) ~= '-' then
    return limbs(text)
  end
  local high, low = limbs(string.sub(text, 2))
  if not high then
    return nil
  end
  return carry(-high, -low)
end

-- The decimal string of two limbs whose low one is from 0 to LIMB - 1.
local function decimal(high, low)
  local sign = ''
  if high < 0 then
    sign, high, low = '-', -high, -low
    if low < 0 then
      high, low = high - 1, low + LIMB
    end
  end
  if high == 0 then
    return sign .. string.format('%d', low)
  end
  return sign .. string.format('%d%09d', high, low)
end

-- What is wrong with writing to an account under a Lease epoch; nothing where it may be written to.
local function refusal(head, epoch)
  local known = redis.call('HGET', head, 'epoch')
  if not known then
    return redis.error_reply('EMPTY this account is not in the store')
  end
  if tonumber(epoch) < tonumber(known) then
    return redis.error_reply('FENCED epoch ' .. epoch .. ' was followed by ' .. known)
  end
  return nil
end

-- A sum of a period that may be written to under a Lease epoch; else nothing, and what is wrong with writing to it.
local function open_sum(head, period, epoch, name)
  local refused = refusal(head, epoch)
  local sum = not refused and redis.call('HGET', period, name)
  if not sum then
    return nil, refused or redis.error_reply('EMPTY this period is not open')
  end
  return sum
end

-- Ends the script where a key that will be written to holds another type. A write that fails leaves the writes before it
-- done, so this comes before the first.
local function expect_types(ledger, ...)
  redis.call('XLEN', ledger)
  for _, key in ipairs({...}) do
    redis.call('HEXISTS', key, '')
  end
end

-- Lets a script write though Redis has no memory left: it refuses one only at a first write that takes more, and this one
-- takes none (https://redis.io/docs/latest/develop/interact/programmability/eval-intro/). For what the leader writes:
-- what pods cause has to stop.
local function write_though_full(key)
  redis.call('DEL', key .. ':nothing')
end

-- Notes under which epoch an account was changed, and that it was: a version lower than one that was seen before tells
-- of a store that went back.
local function changed(head, epoch)
  write_though_full(head)
  redis.call('HINCRBY', head, 'version', 1)
  redis.call('HSET', head, 'epoch', epoch)
end

-- A period's sums and the account's version as a reply.
local function standing(head, period)
  local sums = redis.call('HMGET', period, 'total', 'granted', 'gone', 'exhausted', 'struck', 'terms')
  sums[7] = redis.call('HGET', head, 'version') or '0'
  return sums
end

-- The same after a first value.
local function standing_after(first, head, period)
  local sums = standing(head, period)
  table.insert(sums, 1, first)
  return sums
end
