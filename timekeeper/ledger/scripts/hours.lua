-- Functions on the hourly use that entries are attributed to: rows of "billed core memory used" for each hour and set
-- of dimensions, and the sums of these rows by namespace and model. __init__.py puts each function before the scripts
-- that need it.
local POINT = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d*%-?);()'
local ROW = '^(%-?%d+) (%-?%d+) (%-?%d+) (%-?%d*)$'
local TAKEN = '^ (%d+) (%d+) (%d+) (%d*%-?)$'

-- Returns the digits of a number; 24 nines for a number of more than 24 digits.
local function held(digits)
  return #digits <= 24 and digits or string.rep('9', 24)
end

-- Returns the hourly points that a text states; nil if one of them cannot be read.
local function read_points(text)
  local points, place = {}, 1
  while place <= #text do
    local hour, instant, billed, core, memory, used, following = string.match(text, POINT, place)
    if not hour or (used ~= '-' and not string.find(used, '^%d+$')) then
      return nil
    end
    place = following
    points[#points + 1] = {hour = hour, instant = instant, figures = {held(billed), held(core), held(memory), held(used)}}
  end
  return points
end

-- Returns the stored text of a point without the note ` @SECOND`, which fold_amounts.lua adds once no leader knows the
-- session.
local function without_note(point)
  return (string.gsub(point, ' @%d+$', ''))
end

-- Returns the two limbs of a text that a pattern has matched: digits, perhaps after a sign, bounded to 24 digits. A
-- sign alone, or no text, counts as 0.
local function figure(text)
  text = text or ''
  if #text <= 15 then  -- a double holds it exactly
    local whole = tonumber(text) or 0
    local low = whole % LIMB
    return (whole - low) / LIMB, low
  end
  local sign, digits = string.match(text, '^(%-?)(%d+)$')
  if not digits then
    return 0, 0
  end
  local high, low = limbs_of_digits(held(digits))
  if sign == '-' then
    return carry(-high, -low)
  end
  return high, low
end

-- Adds the difference of two sets of amounts to the row with this hour and these dimensions among `rows`, which are
-- to be written later. A set is {billed, core, memory, used}.
local function add_to_row(rows, hour, dimensions, before, after)
  local of_hour = rows[hour] or {}
  rows[hour] = of_hour
  local row = of_hour[dimensions] or {high = {0, 0, 0, 0}, low = {0, 0, 0, 0}}
  of_hour[dimensions] = row
  for place = 1, 4 do
    if before[place] ~= after[place] then
      local old_high, old_low = figure(before[place])
      local new_high, new_low = figure(after[place])
      row.high[place], row.low[place] =
        saturated(carry(row.high[place] + new_high - old_high, row.low[place] + new_low - old_low))
    end
  end
  row.reported = row.reported or after[4] ~= '-'
end

-- Adds a session's points to the rows of their hours, and returns the text to store of the last point. `stored` is the
-- stored text of the point before them, empty for none; `posted` is the amount that was attributed up to that point.
local function take_points(rows, dimensions, points, stored, posted)
  local last = points[#points]
  local until_when, core, memory, used = string.match(stored, TAKEN)
  local taken = {posted, core or '0', memory or '0', used or '-'}
  local from_the_first = not until_when
  if not until_when and stored ~= '' then
    -- A stored point that cannot be read does not state core, memory and used. Only the new part of the amount is
    -- attributed, to the last hour.
    taken = {posted, last.figures[2], last.figures[3], last.figures[4]}
    from_the_first = false
  end
  for index, point in ipairs(points) do
    local later = until_when and (#point.instant > #until_when
      or (#point.instant == #until_when and point.instant > until_when))
    if from_the_first or later or index == #points then
      local figures = point.figures
      if figures[4] == '-' then
        figures[4] = taken[4]
      end
      -- If a session is only finalized, its last point equals the stored one. It then adds nothing to its hour, whose
      -- rows may be packed by now.
      if figures[1] ~= taken[1] or figures[2] ~= taken[2] or figures[3] ~= taken[3] or figures[4] ~= taken[4] then
        add_to_row(rows, point.hour, dimensions, taken, figures)
      end
      taken = figures
    end
  end
  return ' ' .. last.instant .. ' ' .. taken[2] .. ' ' .. taken[3] .. ' ' .. taken[4]
end

-- Sets `past` to a new value, so that readers that cache the use of closed days read it again.
local function change_the_past(head, how)
  redis.call('HSET', head, 'past', redis.call('HGET', head, 'version') .. ' ' .. how)
end

-- Returns the key of an hour's rows.
local function key_of_rows(hours, hour)
  return hours .. ':' .. hour
end

-- Returns the key of an hour's sums by namespace and model.
local function key_of_sums(hours, hour)
  return hours .. ':' .. hour .. ':sums'
end

-- Returns the place of the last quote of a JSON string that begins at a place of a text; nil if the string does not
-- end.
local function end_of_string(text, place)
  local at = string.find(text, '["\\]', place + 1)
  while at and string.sub(text, at, at) == '\\' do
    at = string.find(text, '["\\]', at + 2)
  end
  return at
end

-- Returns a row's dimensions, as JSON, reduced to the namespace and the model.
local function without_details(dimensions)
  local parts, place = {}, 2
  while #parts < 3 and string.sub(dimensions, place, place) == '"' do
    local last = end_of_string(dimensions, place)
    if not last then
      break
    end
    parts[#parts + 1], place = string.sub(dimensions, place, last), last + 2
  end
  if parts[3] and parts[3] ~= '""' then
    return '[' .. parts[1] .. ',"",' .. parts[3] .. ']'
  end
  return '[' .. (parts[1] or '""') .. ']'
end

-- Returns the text of a row to store: the sum of the stored row `known` (nil or false for none) and of `row`. It
-- returns nil for a new row of zeros only, which is not stored.
local function grown_row(known, row)
  local empty = not known and not row.reported and not row.begun
  local sums, texts = {}, {}
  if known then
    sums = {string.match(known, ROW)}
  end
  for place = 1, 4 do
    local high, low = row.high[place], row.low[place]
    if known then
      local old_high, old_low = figure(sums[place])
      high, low = saturated(carry(old_high + high, old_low + low))
    end
    texts[place] = decimal(high, low)
    empty = empty and texts[place] == '0'
  end
  if not row.reported and (not known or sums[4] == '-') then
    texts[4] = '-'
  end
  return not empty and table.concat(texts, ' ') or nil
end

-- Adds a row to the sum of its namespace and model among `sums`.
local function add_to_sum(sums, dimensions, row)
  local to = without_details(dimensions)
  local sum = sums[to] or {high = {0, 0, 0, 0}, low = {0, 0, 0, 0}, begun = true}
  sums[to] = sum
  for place = 1, 4 do
    sum.high[place], sum.low[place] =
      saturated(carry(sum.high[place] + row.high[place], sum.low[place] + row.low[place]))
  end
  sum.reported = sum.reported or row.reported
end

-- Returns, for each hour, the texts of its sums to store after these rows are added.
local function grown_sums(hours, rows)
  local texts = {}
  for hour, of_hour in pairs(rows) do
    local sums = {}
    for dimensions, row in pairs(of_hour) do
      add_to_sum(sums, dimensions, row)
    end
    texts[hour] = {}
    for to, sum in pairs(sums) do
      texts[hour][to] = grown_row(redis.call('HGET', key_of_sums(hours, hour), to), sum)
    end
  end
  return texts
end

-- Returns the texts of the rows and sums to store after these rows are added, and whether an hour of a closed day
-- changes.
local function grown_rows(hours, rows, instant)
  local closed = math.floor(tonumber(instant) / 3600000000000) - 24
  local grown, begun = {texts = {}, past = false}, {}
  for hour, of_hour in pairs(rows) do
    if tonumber(hour) < closed then
      grown.past = true
    end
    local writes = redis.call('HGET', hours .. ':index', hour)
    if writes and not string.find(writes, '^%d+$') then
      error('the index of hours cannot be read: ' .. writes)
    end
    for dimensions, row in pairs(of_hour) do
      local text = grown_row(redis.call('HGET', key_of_rows(hours, hour), dimensions), row)
      if text then
        grown.texts[hour], begun[hour] = grown.texts[hour] or {}, begun[hour] or {}
        grown.texts[hour][dimensions], begun[hour][dimensions] = text, row
      end
    end
  end
  grown.sums = grown_sums(hours, begun)
  return grown
end

-- Writes the texts of an hour's sums.
local function write_sums(hours, hour, texts)
  for to, text in pairs(texts) do
    redis.call('HSET', key_of_sums(hours, hour), to, text)
  end
end

-- Writes the texts of rows, each into the hash of its hour, and the texts of their sums into the hash of sums. The
-- index counts the writes to each hour, so this function is called once for each change.
local function write_rows(hours, grown, head, instant)
  if grown.past then
    change_the_past(head, 'written at ' .. instant)
  end
  for hour, texts in pairs(grown.texts) do
    redis.call('HINCRBY', hours .. ':index', hour, 1)
    for dimensions, text in pairs(texts) do
      redis.call('HSET', key_of_rows(hours, hour), dimensions, text)
    end
    write_sums(hours, hour, grown.sums[hour])
  end
end

-- Returns two lists for the hours from `first` up to `finish`. The first has each hour that was read, followed by the
-- content of the hash that `key_of` names; once it has `most` rows, no further hour is read. The second has each unread
-- hour, followed by the number of writes to it. The latest hours come first, since they change most.
local function read_hours(hours, first, finish, most, key_of)
  local index, wanted = redis.call('HGETALL', hours .. ':index'), {}
  for position = 1, #index, 2 do
    local hour = tonumber(index[position])
    if hour >= first and hour < finish then
      wanted[#wanted + 1] = {number = hour, hour = index[position], revision = index[position + 1]}
    end
  end
  table.sort(wanted, function(one, other) return one.number > other.number end)
  local rows, unread, count = {}, {}, 0
  for _, each in ipairs(wanted) do
    if count < most then
      local found = redis.call('HGETALL', key_of(hours, each.hour))
      rows[#rows + 1], rows[#rows + 2] = each.hour, found
      count = count + #found / 2
    else
      unread[#unread + 1], unread[#unread + 2] = each.hour, each.revision
    end
  end
  return rows, unread
end
