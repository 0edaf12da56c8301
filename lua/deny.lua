#!lua flags=allow-oom
-- with: ledger
-- Denies: moves the licence to :deferred, or back to its row, and says when it may be tried again.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes; max waiting (per user and channel), max deferred (per shard); then per item ITEM arguments, and
--          reason, wait (us), interval (us between two grants), attempts (at the channel so far),
--          folds (1: it has a collapse key; too many of those are folded in the table instead of dropped)
-- Reply    {now (us), then per item: code, retry (us) or 0}
--          messages: "deferred" retry | "gone" | "expired" | "dropped" (too many wait already)
--          rows: "keep" retry | "expired" | "ended" and "parked" (before)

local EXTRA = 5
local head = after_classes()
local max_waiting, max_deferred = tonumber(ARGV[head]), tonumber(ARGV[head + 1])
local reply = { int(now) }

for i, P in ipairs(KEYS) do
  local at = head + 2 + (i - 1) * (ITEM + EXTRA)
  local item = item_at(P, at)
  local reason, wait, interval = ARGV[at + ITEM], tonumber(ARGV[at + ITEM + 1]), tonumber(ARGV[at + ITEM + 2])
  local e, code, retry
  if item.row then
    e, code = row_head(item)
  else
    e, code = message_head(item, interval), 'gone'
  end
  if e and e.expires > 0 and e.expires <= now then
    book(item, e, 'expired')
    code = 'expired'
  elseif e and not item.row and too_many(item, ARGV[at + ITEM + 4] == '1', max_waiting, max_deferred) then
    book(item, e, 'dropped', 'max_waiting')
    code = 'dropped'
  elseif e then
    e.attempts, e.claimed = tonumber(ARGV[at + ITEM + 3]), 0
    if not item.row and e.attempts > 0 then  -- the meta now says why it failed
      keep_body(item)
    end
    retry = defer(item, e, reason, wait, interval, i)
    code = item.row and 'keep' or 'deferred'
  end
  reply[#reply + 1] = code
  reply[#reply + 1] = int(retry or 0)
end
return reply
