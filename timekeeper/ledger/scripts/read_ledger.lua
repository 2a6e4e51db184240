-- Reads the ledger entries after a given one, oldest first, as of one moment: some segments and, if no later segment
-- follows, entries that are not packed yet.
--
-- KEYS  ledger, segments, order
-- ARGV  the id of the entry after which to begin (empty for the beginning), the most segments, the most entries that
--       are not packed
-- Returns the segments; 1 if no later segment follows, else 0; and the entries as XRANGE does, none if a later
-- segment follows.
local ledger, segments, order = unpack(KEYS)
local after, most, limit = unpack(ARGV)
local low = after == '' and '' or place_in_order(after) .. ' \255'

local function in_the_set()
  return redis.call('ZRANGEBYLEX', order, after == '' and '-' or '(' .. low, '+', 'LIMIT', 0, tonumber(most) + 1)
end

local function by_their_names()
  local found = {}
  for _, name in ipairs(redis.call('HKEYS', segments)) do
    local member = in_order(name)
    if member > low then
      found[#found + 1] = member
    end
  end
  table.sort(found)
  return found
end

-- Returns the segments that the members of the order name, at most `most`; nil if the store lacks one of them.
local function segments_of(found)
  local taken = {}
  for position = 1, math.min(#found, tonumber(most)) do
    taken[position] = redis.call('HGET', segments, string.match(found[position], '^%S+ (.*)$') or '')
    if not taken[position] then
      return nil
    end
  end
  return taken
end

local found = is_ordered(order, segments) and in_the_set()
local taken = found and segments_of(found)
if not taken then
  found = by_their_names()
  taken = segments_of(found)
end
if #found > tonumber(most) then
  return {taken, 0, {}}
end
return {taken, 1, redis.call('XRANGE', ledger, after == '' and '-' or '(' .. after, '+', 'COUNT', limit)}
