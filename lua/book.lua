#!lua flags=allow-oom
-- with: ledger
-- Books ends, each once: of messages, of rows, or of whatever holds the licence (cancel, reconcile).
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes; per item ITEM arguments, and end (delivered, digested, expired, dropped, parked), reason or -,
--          from (own: the message or row that the item says | any: whoever holds the licence |
--          cancel: the same, but what is parked stays)
-- Reply    {now (us), then per item: code, seq or 0}
--          messages and any: "booked" seq | "gone" 0
--          rows: the end that was booked, seq | "ended" 0 and "parked" 0 (before)

local EXTRA = 3
local head = after_classes()
local reply = { int(now) }

for i, P in ipairs(KEYS) do
  local at = head + (i - 1) * (ITEM + EXTRA)
  local item = item_at(P, at)
  local what, reason, from = ARGV[at + ITEM], ARGV[at + ITEM + 1], ARGV[at + ITEM + 2]
  local any = from ~= 'own'
  local e, code
  if any then
    e, code = load(item), 'gone'
    if e and e.parked and from == 'cancel' then
      e = nil
    end
    item.row = e and e.place == 'H' or false
  elseif item.row then
    e, code = row_head(item)
  else
    e, code = message_head(item), 'gone'
  end
  if e then
    e.reason = reason
    book(item, e, what, reason)
    code = (any or not item.row) and 'booked' or what
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = e and e.seq or 0
end
return reply
