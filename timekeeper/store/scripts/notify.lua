-- Notes what of budgets was told outside the cluster, and puts the messages into the outbox: both or neither.
--
-- KEYS  head, told, outbox
-- ARGV  epoch, the most messages that may wait, then for each budget: its uid, what was told (nothing where the budget is
--       gone), and the message (nothing where there is none)
-- Returns how many messages were given up, the oldest first, since too many wait.
local head, told, outbox = unpack(KEYS)
local epoch, most = ARGV[1], tonumber(ARGV[2])
local known = redis.call('HGET', head, 'epoch')
if known and tonumber(epoch) < tonumber(known) then
  return redis.error_reply('FENCED epoch ' .. epoch .. ' was followed by ' .. known)
end
write_though_full(head)
redis.call('HSET', head, 'epoch', epoch)
for position = 3, #ARGV, 3 do
  local uid, record, message = ARGV[position], ARGV[position + 1], ARGV[position + 2]
  if record == '' then
    redis.call('HDEL', told, uid)
  else
    redis.call('HSET', told, uid, record)
  end
  if message ~= '' then
    redis.call('XADD', outbox, '*', 'm', message)
  end
end
local over = redis.call('XLEN', outbox) - most
if over > 0 then
  redis.call('XTRIM', outbox, 'MAXLEN', most)
  return over
end
return 0
