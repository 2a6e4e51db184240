-- Replaces the oldest entries of the ledger by a segment of packed entries. If the latest segment had room for these
-- entries, the new segment contains its entries, too, and replaces it.
--
-- KEYS  head, ledger, segments, order
-- ARGV  fencing token, the id of the ledger's first entry, the id of the last entry to replace, the new segment's
--       name, the new segment, and the name and the SHA-1 of the segment to replace (both empty for none)
-- Returns 1, or 0 if the ledger begins with another entry, or the segment to replace is another one; then nothing is
-- written.
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

-- The removals come first: if Redis has no memory left, it refuses a script only if the first write can take memory.
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
