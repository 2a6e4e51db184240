-- What entries are put down to: rows of "billed core memory used" for each hour and dimensions.
-- Put before each script that writes an entry.
local CUT = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d*%-?)$'
local TAKEN = '^ (%d+) (%d+) (%d+) (%d*%-?)$'

-- A figure of a cut, held to 24 digits; nothing where it is no figure.
local function bounded(text)
  if text == '-' or limbs(text) then
    return text
  end
  return string.find(text, '^%d+$') and string.rep('9', 24) or nil
end

-- The cuts of a text; nothing where one of them cannot be read.
local function read_cuts(text)
  local cuts = {}
  for part in string.gmatch(text or '', '([^;]*);') do
    local hour, instant, billed, core, memory, used = string.match(part, CUT)
    if not hour or not bounded(used) then
      return nil
    end
    local figures = {bounded(billed), bounded(core), bounded(memory), bounded(used)}
    cuts[#cuts + 1] = {hour = hour, instant = instant, figures = figures}
  end
  return cuts
end

-- A remembered cut without the note of when its session was first known to be over for good.
local function without_note(cut)
  return (string.gsub(cut, ' @%d+$', ''))
end

-- Two limbs of a figure, held to 24 digits; what is no figure counts as nothing.
local function figure(text)
  local sign, digits = string.match(text or '', '^(%-?)(%d+)$')
  if not digits then
    return 0, 0
  end
  local high, low = limbs(bounded(digits))
  if sign == '-' then
    return carry(-high, -low)
  end
  return high, low
end

-- Adds the difference of two sets of figures to a row that is still to be written.
local function add_to_row(rows, field, before, after)
  local row = rows[field] or {high = {0, 0, 0, 0}, low = {0, 0, 0, 0}}
  rows[field] = row
  for place = 1, 4 do
    local old_high, old_low = figure(before[place])
    local new_high, new_low = figure(after[place])
    row.high[place], row.low[place] =
      saturated(carry(row.high[place] + new_high - old_high, row.low[place] + new_low - old_low))
  end
  row.reported = row.reported or after[4] ~= '-'
end

-- Puts what a session's cuts add down to their hours; what is to be remembered of the last one.
local function take_cuts(rows, item, posted)
  local last = item.cuts[#item.cuts]
  local until_when, core, memory, used = string.match(item.cut or '', TAKEN)
  local taken = {posted, core or '0', memory or '0', used or '-'}
  local from_the_first = not until_when
  if not until_when and (item.cut or '') ~= '' then
    -- A remembered cut that cannot be read says nothing of core, memory and used: only what is new of the amount is
    -- put down, to the last hour.
    taken = {posted, last.figures[2], last.figures[3], last.figures[4]}
    from_the_first = false
  end
  for index, cut in ipairs(item.cuts) do
    local later = until_when and (#cut.instant > #until_when
      or (#cut.instant == #until_when and cut.instant > until_when))
    if from_the_first or later or index == #item.cuts then
      if cut.figures[4] == '-' then
        cut.figures[4] = taken[4]
      end
      add_to_row(rows, cut.hour .. ' ' .. item.dimensions, taken, cut.figures)
      taken = cut.figures
    end
  end
  return ' ' .. last.instant .. ' ' .. taken[2] .. ' ' .. taken[3] .. ' ' .. taken[4]
end

-- Tells whoever remembers what was put down to days long closed that some of it has changed.
local function change_the_past(head, how)
  redis.call('HSET', head, 'past', redis.call('HGET', head, 'version') .. ' ' .. how)
end

-- The rows as they will stand: what is there already grows by them. A row that would be all nothing is not begun.
local function grown_rows(hours, rows, instant)
  local closed = math.floor(tonumber(instant) / 3600000000000) - 24
  local grown = {texts = {}, past = false}
  for field, row in pairs(rows) do
    local hour, dimensions = string.match(field, '^(%d+) (.*)$')
    if tonumber(hour) < closed then
      grown.past = true
    end
    local writes = redis.call('HGET', hours .. ':index', hour)
    if writes and not string.find(writes, '^%d+$') then
      error('the index of hours cannot be read: ' .. writes)
    end
    local known = redis.call('HGET', hours .. ':' .. hour, dimensions)
    local empty = not known and not row.reported
    local sums = {}
    if known then
      sums = {string.match(known, '^(%-?%d+) (%-?%d+) (%-?%d+) (%-?%d*)$')}
    end
    local texts = {}
    for place = 1, 4 do
      local high, low = figure(sums[place])
      texts[place] = decimal(saturated(carry(high + row.high[place], low + row.low[place])))
      empty = empty and texts[place] == '0'
    end
    if not row.reported and (not known or sums[4] == '-') then
      texts[4] = '-'
    end
    if not empty then
      grown.texts[hour] = grown.texts[hour] or {}
      grown.texts[hour][dimensions] = table.concat(texts, ' ')
    end
  end
  return grown
end

-- Writes rows as they are to stand, each into the hash of its hour. The index holds how often each hour was written to.
-- Called once a change.
local function write_rows(hours, grown, head, instant)
  if grown.past then
    change_the_past(head, 'written at ' .. instant)
  end
  for hour, texts in pairs(grown.texts) do
    redis.call('HINCRBY', hours .. ':index', hour, 1)
    for dimensions, text in pairs(texts) do
      redis.call('HSET', hours .. ':' .. hour, dimensions, text)
    end
  end
end
