-- Sends prepared requests in turns, and prints what came of them in one line that a program can read.
-- Arguments: a path and the file of its body, for each request.

local messages = {}
local turn = 0

function init(arguments)
   local headers = { ["Content-Type"] = "application/json" }
   for index = 1, #arguments, 2 do
      local file = assert(io.open(arguments[index + 1], "rb"))
      messages[#messages + 1] = wrk.format("POST", arguments[index], headers, file:read("*a"))
      file:close()
   end
end

function request()
   turn = turn % #messages + 1
   return messages[turn]
end

function done(summary, latency)
   local errors = summary.errors
   local failed = errors.status + errors.connect + errors.read + errors.write + errors.timeout
   io.write(string.format("outcome %d %d %d %d %d\n",
      latency:percentile(50), latency:percentile(99), summary.requests, summary.duration, failed))
end
