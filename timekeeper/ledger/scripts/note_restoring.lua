-- Notes how far a leader has restored an account from a checkpoint, so that the next leader does the rest.
--
-- KEYS  head
-- ARGV  fencing token, the new values of the head's fields `restoring` and `restored`; an empty value removes the field
-- Returns 1.
local head, fencing_token = KEYS[1], ARGV[1]
local refused = refusal(head, fencing_token)
if refused then
  return refused
end
write_though_full(head)
redis.call('HSET', head, 'epoch', fencing_token)
for index, field in ipairs({'restoring', 'restored'}) do
  if ARGV[index + 1] == '' then
    redis.call('HDEL', head, field)
  else
    redis.call('HSET', head, field, ARGV[index + 1])
  end
end
return 1
