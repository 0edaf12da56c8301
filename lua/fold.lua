#!lua flags=allow-oom
-- with: ledger
-- Folds rows of one user and collapse key into the newest of them: the others end as digested, it waits on. What they
-- were has been written into its row before, so that its digest will tell of them.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes; per item ITEM arguments; rows in seq order, the last is the one that stays
-- Reply    {now (us), then per item: code, 0}; code "digested" | "expired" | "ended" and
--          "parked" (before) | "keep" (the last; all, if the last has ended)

local head = after_classes()
local reply = { int(now) }
local last = item_at(KEYS[#KEYS], head + (#KEYS - 1) * ITEM)
local carrier, gone = row_head(last)
if carrier and carrier.expires > 0 and carrier.expires <= now then
  book(last, carrier, 'expired')
  carrier, gone = nil, 'expired'
end

for i = 1, #KEYS do
  local item, code = item_at(KEYS[i], head + (i - 1) * ITEM), 'keep'
  if i == #KEYS then
    code = gone or 'keep'
  elseif carrier then
    local e, before = row_head(item)
    code = before
    if e then
      code = e.expires > 0 and e.expires <= now and 'expired' or 'digested'
      book(item, e, code)
    end
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = '0'
end
return reply
