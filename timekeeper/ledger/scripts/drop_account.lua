-- Removes an account, unless it holds sessions, use or ledger entries.
--
-- KEYS  head, sessions, ended, index of hours, folded, segments, ledger, then all further keys of the account
-- ARGV  fencing token
-- Returns 1, or 0 if the account holds any of these and stays.
local refused = refusal(KEYS[1], ARGV[1])
if refused then
  return refused
end
for position = 2, 6 do
  if redis.call('EXISTS', KEYS[position]) == 1 then
    return 0
  end
end
if redis.call('XLEN', KEYS[7]) > 0 then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('DEL', key)
end
return 1
