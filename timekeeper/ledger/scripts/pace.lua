-- How often a pod's reports are written. Put before each script that takes one.
local AT_ONCE = 4

-- Whether a report comes too early. One of a pause is taken, and beside it those that do not wait: the first of a boot
-- and the last. Of these a few are taken together, and then one of a pause, since a pod may invent any number of boots.
--
-- `known` is when the report before was taken, and until when those that did not wait use up the pause; all in
-- nanoseconds, and none where there was none. Returns what that becomes, too, where it changes.
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
