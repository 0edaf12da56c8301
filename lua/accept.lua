#!lua
-- with: ledger
-- Accepts notifications: gives each its licence, its seq and its queue, before anything is published.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes, each with emission (us per token of the user's limit, 0 off), tolerance (us), folds (1: it has a
--          collapse key); epoch proposal (hex), max waiting (per user and channel), max deferred (per shard); then
--          per item ITEM arguments
-- Reply    {now (us), then per item: status, queue, seq, epoch}; status "queued", "deferred", "dropped" (too many
--          wait) or "duplicate", queue c|n|b. No `allow-oom`: a full Redis accepts nothing, and says so before
--          anything is written.

local head = after_classes()
local max_waiting, max_deferred = tonumber(ARGV[head + 1]), tonumber(ARGV[head + 2])
local reply = { int(now) }
local epochs = {}
local fresh = 0

local function epoch_of(P)
  if not epochs[P] then
    local epoch = redis.call('GET', P .. 'epoch')
    if not epoch then
      epoch = ARGV[head]
      redis.call('SET', P .. 'epoch', epoch)
    end
    epochs[P] = epoch
  end
  return epochs[P]
end

for i, P in ipairs(KEYS) do
  local item = item_at(P, head + 3 + (i - 1) * ITEM)
  local status, queue, seq
  if redis.call('HEXISTS', P .. 'ledger', item.id) == 1 or redis.call('EXISTS', P .. 'done:' .. item.id) == 1 then
    count(P, 'accepted')
    count(P, 'duplicate')
    status, queue, seq = 'duplicate', '-', 0
  else
    local own = item.own
    local emission = tonumber(ARGV[own])
    local e = admit(item, 'Q', item.priority == 'n' and emission or 0, tonumber(ARGV[own + 1]), emission, i, function()
      return too_many(item, ARGV[own + 2] == '1', max_waiting, max_deferred)
    end)
    status, queue, seq = e.place == 'Q' and 'queued' or 'deferred', e.queue, e.seq
    if e.full then
      book(item, e, 'dropped', 'max_waiting')
      status = 'dropped'
    end
    fresh = fresh + 1
  end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status, queue, seq, epoch_of(P)
end
if fresh > 0 then
  count(KEYS[1], 'accepted', fresh)  -- in one shard for all: only the sums over the shards are ever read
end
return reply
