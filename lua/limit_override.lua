#!lua
-- Sets or removes the limit of one user, in the value of his bucket. The tokens he has used stay used; a debt is
-- forgiven: at worst he begins with an empty bucket.
--
-- KEYS   bucket
-- ARGV   emission burst   of the new limit (microseconds one token takes; tokens)
--        emission         of the limit without an override
--        keep             1: it is an override; 0: the new limit is the one without
-- Reply  1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local DECADE_MS = 315532800000

local emission, burst, before = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = 0
local value = redis.call('GET', KEYS[1])
if value then
  tat = tonumber(value)
  if not tat then
    local a, b = string.match(value, '^(%d+) (%d+) %d+$')
    tat, before = tonumber(a), tonumber(b)
  end
end
local missing = before > 0 and math.max(0, tat - now) / before or 0 -- tokens
tat = now + math.ceil(math.min(missing, burst) * emission)

if ARGV[4] == '1' then
  local text = string.format('%.0f', tat) .. ' ' .. ARGV[1] .. ' ' .. ARGV[2]
  redis.call('SET', KEYS[1], text, 'PX', DECADE_MS)
elseif tat > now then
  redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000))
else
  redis.call('DEL', KEYS[1])
end
return 1
