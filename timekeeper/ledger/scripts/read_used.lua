-- Reads the GPU time in pods' reports.
--
-- KEYS  reports
-- Returns for each key the GPU time, nothing where there is none, or the error of that key: one stops no other.
local answers = {}
for index, key in ipairs(KEYS) do
  answers[index] = redis.pcall('HGET', key, 'used')
end
return answers
