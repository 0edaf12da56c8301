#!lua flags=allow-oom
-- with: ledger
-- Before rows are sent to a channel outside: have they ended, are they parked, have they expired?
--
-- KEYS[i]  shard prefix of item i
-- ARGV     per item ITEM arguments
-- Reply    {now (us), then per item: code, seq}; code "keep" (go on) | "ended" | "parked"

local reply = { int(now) }

for i, P in ipairs(KEYS) do
  local item = item_at(P, 1 + (i - 1) * ITEM)
  local e, code = row_head(item)
  if e and e.expires > 0 and e.expires <= now then
    book(item, e, 'expired')
    code = 'ended'
  end
  reply[#reply + 1] = code or 'keep'
  reply[#reply + 1] = e and int(e.seq) or '0'
end
return reply
