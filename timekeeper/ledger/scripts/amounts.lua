-- Whole numbers of up to 24 digits as two limbs, the low one of nine digits: each is exact in a double.
-- Put before each script that adds.
local LIMB = 1000000000
local HIGH_LIMIT = 1000000000000000

-- The two limbs of a string of one or more digits; nothing where there are more than 24.
local function limbs_of_digits(text)
  if #text <= 15 then  -- a double holds it exactly
    local whole = tonumber(text)
    local low = whole % LIMB
    return (whole - low) / LIMB, low
  end
  if #text > 24 then
    return nil
  end
  return tonumber(string.sub(text, 1, -10)), tonumber(string.sub(text, -9))
end

-- The two limbs of a decimal string; nothing where it is no whole number from 0 to 10^24 - 1.
local function limbs(text)
  if type(text) ~= 'string' or text == '' or string.find(text, '%D') then
    return nil
  end
  return limbs_of_digits(text)
end

-- Limbs of any sign and size to limbs whose low one is from 0 to LIMB - 1.
local function carry(high, low)
  local rest = low % LIMB
  return high + (low - rest) / LIMB, rest
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

-- A key's text; nothing where it holds none, or another type.
local function text_of(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found or nil
end

-- The number of a fencing token or of a term; nothing where a text is none.
local function ordinal(text)
  return text and #text <= 15 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- The term that got the latest fencing token, and its holder; nothing where the store does not say so.
local function stored_term(key)
  local term, holder = string.match(text_of(key) or '', '^(%d+) (.*)$')
  return ordinal(term), holder
end

-- Whether a later fencing token than this one has written, by what it wrote as its own. A text that is no number fences no leader.
local function is_followed(fencing_token, known)
  return tonumber(fencing_token) < (ordinal(known) or 0)
end

-- The error of a write to an account under a fencing token; nothing where the write is allowed.
local function refusal(head, fencing_token)
  local known = redis.call('HGET', head, 'epoch')
  if not known then
    return redis.error_reply('EMPTY this account is not in the store')
  end
  if tonumber(fencing_token) < tonumber(known) then
    return redis.error_reply('FENCED fencing token ' .. fencing_token .. ' was followed by ' .. known)
  end
  return nil
end

-- A sum of a period that may be written to under a fencing token; otherwise nothing, and the error.
local function open_sum(head, period, fencing_token, name)
  local refused = refusal(head, fencing_token)
  local sum = not refused and redis.call('HGET', period, name)
  if not sum then
    return nil, refused or redis.error_reply('EMPTY this period is not open')
  end
  return sum
end

-- Ends the script where a key holds something else than a hash. A write that fails leaves the writes
-- before it done, so this comes before the first.
local function expect_hashes(...)
  for index = 1, select('#', ...) do
    redis.call('HEXISTS', select(index, ...), '')
  end
end

-- Ends the script where a key that will be written to holds another type. A write that fails leaves the writes before it
-- done, so this comes before the first.
local function expect_types(ledger, ...)
  redis.call('XLEN', ledger)
  expect_hashes(...)
end

-- Ends the script where a field that will be counted up holds no number that can be.
local function expect_count(hash, field)
  local found = redis.call('HGET', hash, field)
  if found and (#found > 18 or string.find(found, '%D')) then
    error(field .. ' of ' .. hash .. ' is no number that can be counted up: ' .. found)
  end
end

-- Lets a script write though Redis has no memory left: it refuses one only at a first write that takes more, and this one
-- takes none (https://redis.io/docs/latest/develop/interact/programmability/eval-intro/). For what the leader writes:
-- what pods cause has to stop.
local function write_though_full(key)
  redis.call('DEL', key .. ':nothing')
end

-- Records a change of an account under a fencing token, with further fields of the head, and returns the new version. A version
-- lower than one that was read before means that the store went back.
local function changed(head, fencing_token, ...)
  write_though_full(head)
  local version = redis.call('HINCRBY', head, 'version', 1)
  redis.call('HSET', head, 'epoch', fencing_token, ...)
  -- A double holds a larger one only nearly.
  return version < 2 ^ 53 and string.format('%d', version) or redis.call('HGET', head, 'version')
end

-- A period's total, granted, gone, exhausted, struck and terms.
local function sums_of(period)
  return redis.call('HMGET', period, 'total', 'granted', 'gone', 'exhausted', 'struck', 'terms')
end

-- A period's sums and the account's version as a reply.
local function standing(head, period)
  local sums = sums_of(period)
  sums[7] = redis.call('HGET', head, 'version') or '0'
  return sums
end

-- The same after a first value.
local function standing_after(first, head, period)
  local sums = standing(head, period)
  table.insert(sums, 1, first)
  return sums
end
