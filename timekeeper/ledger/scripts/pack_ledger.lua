-- Puts a segment in the place of the ledger's oldest entries, and of the segment before it where that had room for them.
--
-- KEYS  head, ledger, segments, order
-- ARGV  fencing token, the id of the ledger's first entry and of the last one that is taken, the new segment's name, the segment,
--       and the name and SHA-1 of the one that it takes the place of, or nothing and nothing
-- Returns 1, or 0 where anything is not as it is expected.
local head, ledger, segments, order = unpack(KEYS)
local fencing_token, first, last, name, segment, old_name, old_sha1 = unpack(ARGV)
local refused = refusal(head, fencing_token)
if refused then
  return refused
end
local begins = redis.call('XRANGE', ledger, '-', '+', 'COUNT', 1)
if not begins[1] or begins[1][1] ~= first then
  return 0
end
if old_name ~= '' then
  if redis.sha1hex(redis.call('HGET', segments, old_name) or '') ~= old_sha1 then
    return 0
  end
end
local time, counter = string.match(last, '^(%d+)-(%d+)$')
local next_id = time .. '-' .. string.format('%d', tonumber(counter) + 1)
local members, old_member = {in_order(name)}, old_name ~= '' and in_order(old_name)
local ordered = is_ordered(order, segments)
if not ordered then
  for _, known in ipairs(redis.call('HKEYS', segments)) do
    if known ~= old_name then
      members[#members + 1] = in_order(known)
    end
  end
end

-- What makes room comes first: a store that is full refuses only a script that begins by taking more.
if old_name ~= '' then
  redis.call('HDEL', segments, old_name)
  redis.call('ZREM', order, old_member)
end
redis.call('XTRIM', ledger, 'MINID', next_id)
redis.call('HSET', segments, name, segment)
if not ordered then
  redis.call('DEL', order)
end
for _, member in ipairs(members) do
  redis.call('ZADD', order, 0, member)
end
return 1
