-- Records the announced milestones of budgets, and puts the messages about them into the outbox: both or neither.
--
-- KEYS  head, announced (the key NAME:told), outbox
-- ARGV  fencing token, the most messages that may wait, then for each budget: its uid, its announced milestones as
--       JSON (empty if the budget was deleted), and the message (empty for none)
-- Returns the number of messages that were dropped, the oldest first, because more than the most would wait.
local head, announced, outbox = unpack(KEYS)
local fencing_token, most = ARGV[1], tonumber(ARGV[2])
local known = redis.call('HGET', head, 'epoch')
if is_followed(fencing_token, known) then
  return redis.error_reply('FENCED fencing token ' .. fencing_token .. ' was followed by ' .. known)
end
expect_types(outbox, announced)
local messages = 0
for position = 5, #ARGV, 3 do
  messages = messages + (ARGV[position] ~= '' and 1 or 0)
end
local over = redis.call('XLEN', outbox) + messages - most

write_though_full(head)
redis.call('HSET', head, 'epoch', fencing_token)
for position = 3, #ARGV, 3 do
  local uid, record, message = ARGV[position], ARGV[position + 1], ARGV[position + 2]
  if record == '' then
    redis.call('HDEL', announced, uid)
  else
    redis.call('HSET', announced, uid, record)
  end
  if message ~= '' then
    redis.call('XADD', outbox, '*', 'm', message)
  end
end
if over > 0 then
  redis.call('XTRIM', outbox, 'MAXLEN', most)
  return over
end
return 0
