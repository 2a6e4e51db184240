-- Reads the GPU time that the reports of pods state.
--
-- KEYS  the hash of each pod's reports
-- Returns for each key the GPU time, nil for none, or the error of that key; the other keys are read all the same.
local answers = {}
for index, key in ipairs(KEYS) do
  answers[index] = redis.pcall('HGET', key, 'used')
end
return answers
