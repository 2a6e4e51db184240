-- Writes the capacity of the cluster from an instant on, and deletes that of later instants: a clock that was ahead has
-- stamped them.
--
-- KEYS  fencing token, capacity, capacity of models
-- ARGV  the leader's fencing token, the instant, the capacity, the capacity by model as JSON
local known = ordinal(text_of(KEYS[1])) or 0
if known > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED fencing token ' .. ARGV[1] .. ' was followed by ' .. known)
end

-- Returns the fields of a hash that are later instants than the one to write.
local function later_ones(key)
  local later, instant = {}, ARGV[2]
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if string.find(name, '^%d+$') and (#name > #instant or (#name == #instant and name > instant)) then
      later[#later + 1] = name
    end
  end
  return later
end

local later, later_of_models = later_ones(KEYS[2]), later_ones(KEYS[3])
write_though_full(KEYS[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[4])
for _, name in ipairs(later) do
  redis.call('HDEL', KEYS[2], name)
end
for _, name in ipairs(later_of_models) do
  redis.call('HDEL', KEYS[3], name)
end
return 1
