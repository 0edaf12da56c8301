#!lua flags=allow-oom
-- with: ledger
-- Before rows are sent to a channel outside: have they ended, are they parked, have they expired?
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes; per item ITEM arguments, and interval (us between two grants of this user)
-- Reply    {now (us), then per item: code, number}
--          code "go" seq | "expired" seq | "ended" 0 and "parked" 0 (before) | "keep" retry (us; an earlier one waits)

local EXTRA = 1

local head = after_classes()
local reply = { int(now) }
local ahead = {}  -- per user: how many of the lowest waiting seqs this call has let through; they go together

local function waits(item, e)
  if e.priority == 'c' then
    return false
  end
  local key = item.P .. 'waiting:' .. item.user
  local passed = ahead[key] or 0
  local lowest = tonumber(redis.call('ZRANGE', key, passed, passed)[1])
  if lowest and lowest < e.seq then
    return true
  end
  ahead[key] = lowest == e.seq and passed + 1 or passed
  return false
end

for i, P in ipairs(KEYS) do
  local item = item_at(P, head + (i - 1) * (ITEM + EXTRA))
  local e, code = row_head(item)
  local number
  if e and e.expires > 0 and e.expires <= now then
    book(item, e, 'expired')
    code = 'expired'
  elseif e and waits(item, e) then
    local interval = tonumber(ARGV[head - 1 + i * (ITEM + EXTRA)])
    code, number = 'keep', defer(item, e, 'order', 0, interval, i)
  end
  reply[#reply + 1] = code or 'go'
  reply[#reply + 1] = int(number or e and e.seq or 0)
end
return reply
