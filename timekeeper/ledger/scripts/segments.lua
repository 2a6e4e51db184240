-- The order of an account's segments: a sorted set with a member for each segment. A member is the id of the
-- segment's last entry, in digits of fixed number so that bytes sort as ids do, a space, and the segment's name.
-- __init__.py puts each function before the scripts that need it.

-- Returns an id in the form of the order. A cursor, which may lack the counter, gets the counter 0.
local function place_in_order(id)
  local time, counter = string.match(id, '^(%d+)%-?(%d*)')
  if not time then
    error('the place of a segment cannot be read: ' .. id)
  end
  return string.rep('0', 20 - #time) .. time .. '-' .. string.rep('0', 20 - #counter) .. counter
end

-- Returns the member of the order for the segment of this name; the name begins with the id.
local function in_order(name)
  return place_in_order(name) .. ' ' .. name
end

-- Returns whether the order has every segment. Earlier versions of FairGPU packed segments without an order.
local function is_ordered(order, segments)
  return redis.call('ZCARD', order) == redis.call('HLEN', segments)
end
