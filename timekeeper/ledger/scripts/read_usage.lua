-- Reads the use of accounts in a window, and their open sessions with their amounts, each account as of one moment.
-- If there is too much of an account for one run of a script, the answer names the unread pieces. The caller reads
-- these one by one, and runs the script again if they have changed meanwhile.
--
-- KEYS  for each account: head, the beginning of the names of the hours' keys, folded, sessions, the beginning of the
--       names of the keys of amounts (a period's start follows)
-- ARGV  the hour before which the caller needs no rows of an account whose `past` it knows, the first hour of the
--       window, the hour after its last one, 1 if the query asks for nodes, owners, users or labels (else 0), 1 if
--       sums over the window suffice (else 0), and for one account the most rows (the last hour is read whole), the
--       most bytes of packed rows (the last value is read whole) and the most sessions; then for each account the
--       `past` that the caller knows (empty for none)
-- Returns for each account nil if it has no period; otherwise a list: the instant of the last settlement of its
-- sessions; the starts of the latest period and of the one before it; its `past`; 1 if the caller knows that one,
-- else 0; the hours that were read, each followed by its fields and values; the packed values that were read, without
-- sections that the query does not need; for each open session that may have added use, its record and its amounts in
-- the two periods; {version, folds} at this moment; the unread hours, each followed by the number of writes to it;
-- the names of the unread packed values; and 1 if the sessions were not read, else 0.
local window_first, finish = tonumber(ARGV[2]), tonumber(ARGV[3])
local details, one_sum = ARGV[4] == '1', ARGV[5] == '1'
local most_rows, most_bytes, most_sessions = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local CONVERTING = redis.error_reply('FORMAT the use of this account is being converted: ask again in a minute')

-- Returns a packed value without the sections that the query does not need (see domain/usage_folding.py). The value
-- has rows of the hours from `from` up to `to`; the caller needs those from `first` on.
local function sections(value, from, to, first)
  local HEAD, SECTIONED, NOTHING = 10, 2, '\0\0\0\0'
  if string.byte(value, 1) ~= SECTIONED or #value < HEAD then
    return value
  end
  local function length(place)
    local a, b, c, d = string.byte(value, place, place + 3)
    return ((a * 256 + b) * 256 + c) * 256 + d
  end
  local plain, sums = length(3), length(7)
  if one_sum and sums > 0 and from >= first and to <= finish then
    local without = string.sub(value, 1, 2) .. NOTHING .. string.sub(value, 7, HEAD)
    return without .. string.sub(value, HEAD + plain + 1, HEAD + plain + sums)
  end
  return details and value or string.sub(value, 1, HEAD + plain)
end

-- Returns the start of an hour as the store holds instants: as text in nanoseconds since 1970, which a double does
-- not hold exactly.
local function start_of(hour)
  return string.format('%.0f', hour * 3600000000000)
end

local function is_at_or_after(instant, other)
  return #instant > #other or (#instant == #other and instant >= other)
end

local window_start, window_end = start_of(window_first), start_of(finish)
local function after_the_window(instant)
  return instant and is_at_or_after(instant, window_end)
end

-- Returns the stored amounts of sessions in a period, in the order of `uids`; an empty list if `period` is empty.
local function amounts_in(amounts, period, uids)
  local found = {}
  for first = 1, period ~= '' and #uids or 0, 1000 do
    local texts = redis.call('HMGET', amounts .. period, unpack(uids, first, math.min(first + 999, #uids)))
    for place, text in ipairs(texts) do
      found[first + place - 1] = text
    end
  end
  return found
end

-- Returns the use of one account in the form that is stated above, false if it has no period. If the account is not
-- converted yet, it returns nil and an error.
local function use_of(head, hours, folded, sessions, amounts, past_known)
  local settled, latest, previous, past, version, folds =
    unpack(redis.call('HMGET', head, 'settled', 'period', 'previous', 'past', 'version', 'folds'), 1, 6)
  if not latest then
    return false
  end
  if redis.call('EXISTS', hours) == 1 then
    return nil, CONVERTING
  end
  past = past or '-'
  local known = past_known == past
  local first = window_first
  if known then
    first = math.max(first, tonumber(ARGV[1]))
  end

  local rows, unread_hours = read_hours(hours, first, finish, most_rows, details and key_of_rows or key_of_sums)

  local packed, unread_parts, bytes = {}, {}, 0
  for _, name in ipairs(redis.call('HKEYS', folded)) do
    local from, to = string.match(name, '^[hd] (%d+) (%d+)$')
    if not from then
      return nil, CONVERTING
    end
    from, to = tonumber(from), tonumber(to)
    if to > first and from < finish then
      if bytes < most_bytes then
        packed[#packed + 1] = sections(redis.call('HGET', folded, name), from, to, first)
        bytes = bytes + #packed[#packed]
      else
        unread_parts[#unread_parts + 1] = name
      end
    end
  end

  -- If only the latest period can have hours in the window, the amounts in the period before it do not matter.
  previous = previous or ''
  local one_period = previous == '' or window_first * 3600000000000 >= tonumber(latest)

  -- An account that was last settled before the window has added nothing to it.
  local none = is_at_or_after(window_start, settled or '0')
  local open, too_many = {}, not none and redis.call('HLEN', sessions) > most_sessions
  if not none and not too_many then
    local records, uids = redis.call('HGETALL', sessions), {}
    for position = 1, #records, 2 do
      uids[#uids + 1] = records[position]
    end
    local present, before = amounts_in(amounts, latest, uids), amounts_in(amounts, one_period and '' or previous, uids)
    for place = 1, #uids do
      local record, amount = records[2 * place], present[place]
      local posted_until = one_period and amount and string.match(amount, '^%d+ %d+ %d+ %d+ %a (%d+)')
      local later = after_the_window(string.match(record, '"start":(%d+)'))
      if not later and not after_the_window(posted_until) then
        open[#open + 1], open[#open + 2], open[#open + 3] = record, amount, before[place] or false
      end
    end
  end
  return {settled, {latest, previous}, past, known and 1 or 0, rows, packed, open,
    {version or '0', folds or '0'}, unread_hours, unread_parts, too_many and 1 or 0}
end

local answers = {}
for place = 1, #KEYS / 5 do
  local found, refused = use_of(KEYS[5 * place - 4], KEYS[5 * place - 3], KEYS[5 * place - 2], KEYS[5 * place - 1],
    KEYS[5 * place], ARGV[8 + place])
  if refused then
    return refused
  end
  answers[place] = found
end
return answers
