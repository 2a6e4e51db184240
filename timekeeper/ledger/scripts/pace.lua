-- The rate at which a pod's reports are written. __init__.py puts the function before the scripts that take a report.
local AT_ONCE = 4

-- Returns whether a report comes too early, since less than `pause` has passed since the report before. The first and
-- the last report of a sidecar's start (`at_once`) need not wait. A pod may invent any number of starts, so only
-- AT_ONCE such reports are taken together, and then one for each further pause.
--
-- All times are nanoseconds. `known` has two instants, nil for none: when the report before was taken, and until when
-- the reports that did not wait have used up their pauses. If the second instant changes, the function also returns
-- its new value.
local function paced(known, instant, pause, at_once)
  local at, used_up = tonumber(known[1] or ''), tonumber(known[2] or '')
  local early = at and math.abs(instant - at) < pause
  if not early or not at_once then
    return early
  end
  local free = instant - (AT_ONCE - 1) * pause
  used_up = used_up and math.abs(instant - used_up) <= AT_ONCE * pause and math.max(used_up, free) or free
  if used_up > instant then
    return true
  end
  return false, string.format('%.0f', used_up + pause)
end
