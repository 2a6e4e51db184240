-- The order of an account's segments: a sorted set of their names, each after the id of its last entry, written so that
-- the order of bytes is that of ids. Put before each script that reads or changes segments.

-- An id or a cursor, which may lack the counter, as it stands in the order.
local function place_in_order(id)
  local time, counter = string.match(id, '^(%d+)%-?(%d*)')
  if not time then
    error('the place of a segment cannot be read: ' .. id)
  end
  return string.rep('0', 20 - #time) .. time .. '-' .. string.rep('0', 20 - #counter) .. counter
end

-- A segment's name as it stands in the order.
local function in_order(name)
  return place_in_order(name) .. ' ' .. name
end

-- Whether the order holds every segment: those that were packed before there was one are in none.
local function is_ordered(order, segments)
  return redis.call('ZCARD', order) == redis.call('HLEN', segments)
end
