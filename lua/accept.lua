#!lua
-- with: ledger
-- Accepts notifications: gives each its licence, its seq and its queue, before anything is published.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     epoch proposal (hex), max waiting (per user and channel), max deferred (per shard); then per item ITEM
--          arguments, and
--          emission (us per token of the user's limit, 0 off), tolerance (us),
--          folds (1: it has a collapse key)
-- Reply    {now (us), then per item: status, queue, seq, epoch}; status "queued", "deferred", "dropped" (too many wait) or "duplicate",
--          queue c|n|b. No `allow-oom`: a full Redis accepts nothing, and says so before anything is written.

local EXTRA = 3
local max_waiting, max_deferred = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = { int(now) }
local epochs = {}

for i, P in ipairs(KEYS) do
  local at = 4 + (i - 1) * (ITEM + EXTRA)
  local item = item_at(P, at)
  local emission, tolerance = tonumber(ARGV[at + ITEM]), tonumber(ARGV[at + ITEM + 1])
  if not epochs[P] then
    redis.call('SET', P .. 'epoch', ARGV[1], 'NX')
    epochs[P] = redis.call('GET', P .. 'epoch')
  end
  local at_reply = #reply
  if redis.call('HEXISTS', P .. 'ledger', item.id) == 1 or redis.call('EXISTS', P .. 'done:' .. item.id) == 1 then
    count(P, 'accepted')
    count(P, 'duplicate')
    reply[at_reply + 1], reply[at_reply + 2], reply[at_reply + 3] = 'duplicate', '-', 0
  else
    local queue = item.priority
    if queue == 'n' and emission > 0 then  -- arrivals beyond the user's own limit must not queue ahead of others
      local key = P .. 'meter:' .. item.user
      local tat = math.max(tonumber(redis.call('GET', key)) or 0, now) + emission
      if tat - now > tolerance then
        queue = 'b'
      else
        redis.call('SET', key, int(tat), 'PX', math.ceil((tat - now) / 1000))
      end
    end
    local full = too_many(item, ARGV[at + ITEM + 2] == '1', max_waiting, max_deferred)
    local e = accept(item, 'Q', queue, emission, i)
    local status = e.place == 'Q' and 'queued' or 'deferred'
    if status == 'deferred' and full then
      book(item, e, 'dropped', 'max_waiting')
      status = 'dropped'
    end
    reply[at_reply + 1], reply[at_reply + 2] = status, e.queue
    reply[at_reply + 3] = e.seq
  end
  reply[at_reply + 4] = epochs[P]
end
return reply
