-- How far the readers of a call's streams are behind, those that run; who waits for them is told of their next commit.
-- arg: streams {{stream, {readers}}}, wait: leave word that somebody waits
-- Returns the largest lag: items or characters.
local most = 0
for _, pair in ipairs(arg.streams) do
  most = math.max(most, lag_of(pair[1], pair[2], arg.wait))
end
return most
