#!lua flags=allow-oom
-- with: ledger
-- Before a message is handled out of the ordinary: again, near its end, or about to be sent to a channel outside.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes; lease (us; > 0 claims it); then per item ITEM arguments, and again (1: redelivered or republished)
-- Reply    {now (us), then per item: code, seq}; code "go", "gone" (ended, stale or another's), "expired", "parked",
--          "blocked" (only with a lease: an earlier one waits)

local EXTRA = 1
local head = after_classes()
local lease = tonumber(ARGV[head])
local reply = { int(now) }
local first = lease > 0 and 1 or 0  -- a claim counts the first start too; either way it has run five times then

for i, P in ipairs(KEYS) do
  local at = head + 1 + (i - 1) * (ITEM + EXTRA)
  local item = item_at(P, at)
  local again = ARGV[at + ITEM] == '1'
  local e = message_head(item)
  local code = 'go'
  if not e or lease > 0 and e.claimed > now then
    code = 'gone'
  elseif again and e.starts + 1 >= MAX_STARTS + first then
    e.starts, e.reason = e.starts + 1, 'poison'
    book(item, e, 'parked')
    code = 'parked'
  elseif e.expires > 0 and e.expires <= now then
    book(item, e, 'expired')
    code = 'expired'
  elseif lease > 0 and blocked(item, e) then
    code = 'blocked'
  elseif again or lease > 0 then
    e.starts = e.starts + 1
    if lease > 0 then  -- the sweep leaves it alone until the lease is over, and republishes it then
      e.claimed = now + lease
      redis.call('ZADD', P .. 'queued:' .. e.queue, int(e.claimed), item.id)
    end
    save(item, e)
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = e and e.seq or 0
end
return reply
