-- Arithmetic with whole numbers of up to 24 digits, which a double cannot hold. A number is two limbs: the low limb
-- has its last nine digits, the high limb the others, so that each limb is exact in a double. The checks of fencing
-- tokens and of types follow. __init__.py puts each function before the scripts that need it.
local LIMB = 1000000000
local HIGH_LIMIT = 1000000000000000

-- Returns the two limbs of a string of one or more digits; nil for more than 24 digits.
local function limbs_of_digits(text)
  if #text <= 15 then  -- a double holds it exactly
    local whole = text + 0  -- tonumber would read it twice
    local low = whole % LIMB
    return (whole - low) / LIMB, low
  end
  if #text > 24 then
    return nil
  end
  return tonumber(string.sub(text, 1, -10)), tonumber(string.sub(text, -9))
end

-- Returns the two limbs of a decimal string; nil if it is no whole number from 0 to 10^24 - 1.
local function limbs(text)
  if type(text) ~= 'string' or not string.find(text, '^%d+$') then
    return nil
  end
  return limbs_of_digits(text)
end

-- Returns the limbs of the same number with a low limb from 0 to LIMB - 1.
local function carry(high, low)
  local rest = low % LIMB
  return high + (low - rest) / LIMB, rest
end

-- Returns the limbs of the number, bounded to the numbers of 24 digits with either sign.
local function saturated(high, low)
  if high >= HIGH_LIMIT then
    return HIGH_LIMIT - 1, LIMB - 1
  end
  if high < -HIGH_LIMIT or (high == -HIGH_LIMIT and low == 0) then
    return -HIGH_LIMIT, 1
  end
  return high, low
end

-- Returns the two limbs of a decimal string that may be negative; nil if it is no whole number of at most 24 digits.
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

-- Returns the decimal string of two limbs; the low limb is from 0 to LIMB - 1.
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

-- Returns the text under a key; nil if there is none, or the key holds another type.
local function text_of(key)
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found or nil
end

-- Returns the number of a fencing token or of a term; nil if the text is no such number.
local function ordinal(text)
  return text and #text <= 15 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Returns the term that got the latest fencing token, and the term's holder; nil if the store does not state them.
local function stored_term(key)
  local term, holder = string.match(text_of(key) or '', '^(%d+) (.*)$')
  return ordinal(term), holder
end

-- Returns whether a later fencing token than this one has written. `known` is the token that the last write stored; a
-- text that is no number fences no leader.
local function is_followed(fencing_token, known)
  return tonumber(fencing_token) < (ordinal(known) or 0)
end

-- Returns the error of a write to an account under a fencing token; nil if the write is allowed.
local function refusal(head, fencing_token)
  local known = redis.call('HGET', head, 'epoch')
  if not known then
    return redis.error_reply('EMPTY this account is not in the store')
  end
  if is_followed(fencing_token, known) then
    return redis.error_reply('FENCED fencing token ' .. fencing_token .. ' was followed by ' .. known)
  end
  return nil
end

-- Returns the sum of this name, such as total, of a period that may be written to under a fencing token. If the
-- period may not be written to, it returns nil and the error.
local function open_sum(head, period, fencing_token, name)
  local refused = refusal(head, fencing_token)
  local sum = not refused and redis.call('HGET', period, name)
  if not sum then
    return nil, refused or redis.error_reply('EMPTY this period is not open')
  end
  return sum
end

-- Ends the script if a key holds another type than a hash. It is called before the first write, since Redis does not
-- undo the writes before one that fails.
local function expect_hashes(...)
  for index = 1, select('#', ...) do
    redis.call('HEXISTS', select(index, ...), '')
  end
end

-- Ends the script if the ledger is no stream, or another key that will be written to is no hash. It is called before
-- the first write, too.
local function expect_types(ledger, ...)
  redis.call('XLEN', ledger)
  expect_hashes(...)
end

-- Ends the script if a field that will be counted up holds no number, or too large a number.
local function expect_count(hash, field)
  local found = redis.call('HGET', hash, field)
  if found and (#found > 18 or string.find(found, '%D')) then
    error(field .. ' of ' .. hash .. ' is no number that can be counted up: ' .. found)
  end
end

-- Makes Redis accept the writes of a script even if it has no memory left. Redis refuses a script only at its first
-- write, and only if that write can take memory; this one cannot
-- (https://redis.io/docs/latest/develop/interact/programmability/eval-intro/). Scripts for writes that pods cause do
-- not call it: these writes must stop.
local function write_though_full(key)
  redis.call('DEL', key .. ':nothing')
end

-- Records a change of an account under a fencing token, sets further fields of the head, and returns the new version.
-- If a version is lower than one that was read before, the store went back to an earlier state.
local function changed(head, fencing_token, ...)
  write_though_full(head)
  local version = redis.call('HINCRBY', head, 'version', 1)
  redis.call('HSET', head, 'epoch', fencing_token, ...)
  -- A double is not exact for larger numbers.
  return version < 2 ^ 53 and string.format('%d', version) or redis.call('HGET', head, 'version')
end

-- Returns a period's total, granted, gone, exhausted, struck and terms (see ledger/keys.py).
local function sums_of(period)
  return redis.call('HMGET', period, 'total', 'granted', 'gone', 'exhausted', 'struck', 'terms')
end

-- Returns a period's sums and the account's version as a reply.
local function standing(head, period)
  local sums = sums_of(period)
  sums[7] = redis.call('HGET', head, 'version') or '0'
  return sums
end

-- Returns the same reply with another value before it.
local function standing_after(first, head, period)
  local sums = standing(head, period)
  table.insert(sums, 1, first)
  return sums
end
