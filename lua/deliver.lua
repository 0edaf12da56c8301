#!lua flags=allow-oom
-- with: ledger
-- Delivers to feeds: licence, deadline, order, then feed entry, push and booked end, all in one step.
--
-- KEYS[i]  shard prefix of item i
-- ARGV     classes, each with notification_id and category as JSON; feed length (entries), feed life (s); then per item
--          ITEM arguments, and
--          granted (us, limiter's clock), deadline (us, this server's clock; 0 none), interval (us between two
--          grants of this user),
--          digest: empty, or lines: members (k > 1: this item and the next k - 1, rows in seq order, are one digest for
--          one grant), and if others were folded into this row before: how many, when the first was accepted (us),
--          then their ids as JSON, oldest first
-- Reply    {now (us), then per item: code, number (us or seq)}
--          messages: "delivered" seq | "gone" | "expired" | "late" | "deferred" retry (an earlier one waits)
--          rows: "delivered" seq | "digested" seq | "expired" | "ended" and "parked" (before) | "late" | "keep" retry

local EXTRA = 4
local MAX_IDS = 100  -- in one digest object; the newest ones
local head = after_classes()
local feed_length, feed_ttl_s = ARGV[head], tonumber(ARGV[head + 1])
local items_at = head + 2
local refresh_ms = feed_ttl_s * 1000 / 64  -- a feed's expiry is put off once in such a while, not at every entry
local reply = { int(now) }
local delivered = 0

local function seconds(us)
  return string.format('%.6f', us / 1000000)
end

local function push(item, e, granted, digest)
  local feed = item.P .. 'feed:' .. item.user
  local last = redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1)[1]
  local frame = string.format('"notification_id":%s,"seq":%.0f,"category":%s,"accepted_at":%.6f,"granted_at":%.6f,',
    ARGV[item.own], e.seq, ARGV[item.own + 1], e.accepted / 1000000, granted / 1000000) ..
    '"payload":' .. item.body .. (digest and ',"digest":' .. digest or '') .. '}'
  local entry = redis.call('XADD', feed, 'MAXLEN', feed_length, '*', 'f', frame)
  last = last and last[1] or '0-0'
  local last_ms, now_ms = tonumber(string.match(last, '^%d+')), now / 1000
  if math.floor(last_ms / refresh_ms) ~= math.floor(now_ms / refresh_ms) then
    redis.call('EXPIRE', feed, math.ceil(feed_ttl_s * 65 / 64))
  end
  redis.call('PUBLISH', feed, entry .. ' ' .. last .. ' {"id":"' .. entry .. '",' .. frame)
  return entry
end

-- How many rows this item begins a digest of, and what was folded into it: lines.
local function digest_at(at)
  local text = ARGV[at + ITEM + 3]
  if text == '' then
    return 1, ''
  end
  local members, folded = string.match(text, '^(%d+)\n?(.*)$')
  return tonumber(members), folded
end

-- The digest object of these members, oldest first, or nil where a single one stands for itself alone.
local function digest_of(members)
  local total, first, newest = 0, nil, {}
  for n = #members, 1, -1 do
    local e, lines = members[n].e, {}
    local _, folded = digest_at(members[n].at)
    for line in string.gmatch(folded, '[^\n]+') do
      lines[#lines + 1] = line
    end
    total = total + 1 + (tonumber(lines[1]) or 0)
    first = math.min(first or e.accepted, e.accepted, tonumber(lines[2]) or e.accepted)
    newest[#newest + 1] = ARGV[members[n].item.own]
    for k = #lines, 3, -1 do
      newest[#newest + 1] = lines[k]
    end
  end
  if total > 1 then
    local ids = {}
    for k = math.min(#newest, MAX_IDS), 1, -1 do
      ids[#ids + 1] = newest[k]
    end
    return '{"count":' .. total .. ',"first_at":' .. seconds(first) .. ',"last_at":' ..
      seconds(members[#members].e.accepted) .. ',"ids":[' .. table.concat(ids, ',') .. ']}'
  end
end

local function answer(code, number)
  reply[#reply + 1] = code
  reply[#reply + 1] = int(number or 0)
end

-- May it be delivered now? Answers itself, and returns false, if not.
local function ready(item, e, at)
  local deadline, interval = tonumber(ARGV[at + ITEM + 1]), tonumber(ARGV[at + ITEM + 2])
  if e.expires > 0 and e.expires <= now then
    book(item, e, 'expired')
    answer('expired')
  elseif deadline > 0 and now > deadline then
    answer('late')
  elseif blocked(item, e) then
    answer(item.row and 'keep' or 'deferred', defer(item, e, 'order', 0, interval, #reply))
  else
    return true
  end
  return false
end

local function single(P, at)
  local item = item_at(P, at)
  local e, gone
  if item.row then
    e, gone = row_head(item)
  else
    e = message_head(item, tonumber(ARGV[at + ITEM + 2]))
  end
  if not e then
    answer(gone or 'gone')
  elseif ready(item, e, at) then
    local object = ARGV[at + ITEM + 3] ~= '' and digest_of({ { item = item, e = e, at = at } }) or nil
    local entry = push(item, e, tonumber(ARGV[at + ITEM]), object)
    if item.row then
      book(item, e, 'delivered', entry)
    else
      let_go(item, e, 'delivered', entry)
      delivered = delivered + 1
    end
    answer('delivered', e.seq)
  end
end

-- Rows of one digest: the newest that has not ended carries; members that ended before are skipped.
local function digest(first, members, stride)
  local live, codes = {}, {}
  for k = 0, members - 1 do
    local at = items_at + (first - 1 + k) * stride
    local item = item_at(KEYS[first + k], at)
    local e, gone = row_head(item)
    if e and e.expires > 0 and e.expires <= now then
      book(item, e, 'expired')
      e, gone = nil, 'expired'
    end
    codes[k + 1] = { gone, 0 }
    if e then
      live[#live + 1] = { item = item, e = e, at = at, k = k + 1 }
    end
  end
  local carrier = live[#live]
  if carrier then
    local deadline, interval = tonumber(ARGV[carrier.at + ITEM + 1]), tonumber(ARGV[carrier.at + ITEM + 2])
    local late = deadline > 0 and now > deadline
    local waits = blocked(live[1].item, live[1].e)
    for _, member in ipairs(live) do
      if late then
        codes[member.k] = { 'late', 0 }
      elseif waits then
        codes[member.k] = { 'keep', defer(member.item, member.e, 'order', 0, interval, 0) }
      end
    end
    if not late and not waits then
      local object = digest_of(live)
      local entry = push(carrier.item, carrier.e, tonumber(ARGV[carrier.at + ITEM]), object)
      for _, member in ipairs(live) do
        local what = member == carrier and 'delivered' or 'digested'
        book(member.item, member.e, what, entry)
        codes[member.k] = { what, member.e.seq }
      end
    end
  end
  for _, code in ipairs(codes) do
    answer(code[1], code[2])
  end
end

local i, stride = 1, ITEM + EXTRA
while i <= #KEYS do
  local at = items_at + (i - 1) * stride
  local members = digest_at(at)
  if members > 1 then
    digest(i, members, stride)
  else
    single(KEYS[i], at)
  end
  i = i + members
end
if delivered > 0 then
  count(KEYS[1], 'delivered', delivered)  -- in one shard for all: only the sums over the shards are ever read
end
return reply
