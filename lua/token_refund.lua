#!lua
-- Gives a token back that was taken but not used: on a cluster, where the channel's bucket lies in another slot.
--
-- What the bucket has refilled since then is not given back: while the token was out, the bucket may have been full.
-- So a refund never lets more through than if the token had never been taken.
--
-- KEYS   bucket [quota]
-- ARGV   granted_at  when it was taken (this server's clock, microseconds)
--        emission    microseconds one token takes, where the bucket has no override; 0: no limit
--        window      of the quota's 60, microseconds
-- Reply  1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local granted_at, emission, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local value = redis.call('GET', KEYS[1])
if value then
  local tat, override = tonumber(value), ''
  if not tat then
    local a, b = string.match(value, '^(%d+) (%d+) %d+$')
    tat, emission, override = tonumber(a), tonumber(b), string.sub(value, #a + 1)
  end
  local refund = math.max(0, emission - math.max(0, now - granted_at))
  local left = tat - refund
  if override ~= '' then
    redis.call('SET', KEYS[1], string.format('%.0f', math.max(0, left)) .. override, 'KEEPTTL')
  elseif left > now then
    redis.call('SET', KEYS[1], string.format('%.0f', left), 'PX', math.ceil((left - now) / 1000))
  else
    redis.call('DEL', KEYS[1])
  end
end

if KEYS[2] then
  local field = string.format('%.0f', math.floor(granted_at / window))
  if tonumber(redis.call('HGET', KEYS[2], field) or '0') > 0 then redis.call('HINCRBY', KEYS[2], field, -1) end
end
return 1
