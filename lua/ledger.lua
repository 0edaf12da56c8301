-- Shared by the protocol's scripts (put before each by the loader; not a script of its own).
--
-- Keys of a shard, all beginning with its prefix P = "notifier:v1:{0417}:" and so in one slot:
--   P ledger        hash  identity -> entry: the licence, from accept until the end is booked
--   P bodies        hash  identity -> meta JSON, newline, payload JSON; until a row or an end has it
--   P queued:c|n|b  zset  identity -> when it was last published, or until when it is claimed (us): place Q
--   P deferred      zset  identity -> when it was deferred (us): place D, in list order
--   P waiting:USER  zset  seq -> seq: denied and not yet ended; no TTL
--   P seq:USER      int   last seq given out        P meter:USER  int  arrival meter (theoretical arrival time, us)
--   P feed:USER     stream                          P done:ID     string "end us seq entry", TTL: the done mark
--   P counts        hash  accepted, the ends, parked (now), deferrals, replayed, republished
--   P epoch         string, made with the ledger: a row that names another one outlived its Redis
-- Entry: "place parked priority queue seq accepted expires due starts claimed mark_ms retry attempts reason";
--   place Q (broker), D (deferred), H (a row holds it); priority and queue c|n|b; times in us, 0 is none.
--
-- Every item begins with ITEM arguments:
--   id, user (tails of keys), kind (m message | r row), accepted (us), life (us), priority (c|n|b), ttl (us),
--   due (us), mark_ms, meta, body, epoch

local ITEM = 12
local MAX_STARTS = 5
local SEQ_TTL_S = 7776000
local UNORDERED = { scheduled = true, delivery_failed = true, breaker_open = true, quiet_hours = true, poison = true }

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function int(x)
  return string.format('%.0f', x)
end

local function item_at(P, at)
  return {
    P = P, id = ARGV[at], user = ARGV[at + 1], row = ARGV[at + 2] == 'r', accepted = tonumber(ARGV[at + 3]),
    life = tonumber(ARGV[at + 4]), priority = ARGV[at + 5], ttl = tonumber(ARGV[at + 6]),
    due = tonumber(ARGV[at + 7]), mark_ms = ARGV[at + 8], meta = ARGV[at + 9], body = ARGV[at + 10],
    epoch = ARGV[at + 11],
  }
end

local function load(item)
  local text = redis.call('HGET', item.P .. 'ledger', item.id)
  if not text then
    return nil
  end
  local f, n = {}, 0
  for word in string.gmatch(text, '%S+') do
    n = n + 1
    f[n] = word
  end
  return {
    place = f[1], parked = f[2] == '1', priority = f[3], queue = f[4], seq = tonumber(f[5]), accepted = tonumber(f[6]),
    expires = tonumber(f[7]), due = tonumber(f[8]), starts = tonumber(f[9]), claimed = tonumber(f[10]),
    mark_ms = f[11], retry = tonumber(f[12]), attempts = tonumber(f[13]), reason = f[14],
  }
end

local function save(item, e)
  redis.call('HSET', item.P .. 'ledger', item.id, table.concat({
    e.place, e.parked and '1' or '0', e.priority, e.queue, int(e.seq), int(e.accepted), int(e.expires), int(e.due),
    int(e.starts), int(e.claimed), e.mark_ms, int(e.retry), int(e.attempts), e.reason }, ' '))
end

local function count(P, what, n)
  redis.call('HINCRBY', P .. 'counts', what, n or 1)
end

local function leave_queue(item, e)
  if e.place == 'Q' then
    redis.call('ZREM', item.P .. 'queued:' .. e.queue, item.id)
  end
end

local function next_seq(item)
  local key = item.P .. 'seq:' .. item.user
  local seq = redis.call('INCR', key)
  if seq == 1 then  -- new, or expired: it must not restart below what still waits
    local last = redis.call('ZREVRANGE', item.P .. 'waiting:' .. item.user, 0, 0)[1]
    if last then
      seq = tonumber(last) + 1
      redis.call('SET', key, int(seq))
    end
  end
  redis.call('EXPIRE', key, SEQ_TTL_S)
  return seq
end

-- Its slot among those that wait: its rank by seq. Denied in order, that is the set's size; denied out of order (several
-- workers), a later seq never gets an earlier time than this one, where it would take a token only to be held back.
local function slot(item, e, adds)
  local key = item.P .. 'waiting:' .. item.user
  if adds then
    redis.call('ZADD', key, int(e.seq), int(e.seq))
    return redis.call('ZRANK', key, int(e.seq)) + 1
  end
  local size = redis.call('ZCARD', key)
  return size > 0 and size or 1
end

local function hold_in_deferred(item, e, offset)
  leave_queue(item, e)
  e.place = 'D'
  if not e.parked then
    count(item.P, 'deferrals')
  end
  redis.call('ZADD', item.P .. 'deferred', int(now + offset), item.id)
end

local function hold_in_row(item, e)
  leave_queue(item, e)
  e.place = 'H'
  redis.call('ZREM', item.P .. 'deferred', item.id)
  redis.call('HDEL', item.P .. 'bodies', item.id)
end

-- Gives the identity its licence. where: 'Q', or 'H' for a row. Returns the entry.
local function accept(item, where, queue, interval, offset)
  count(item.P, 'accepted')
  local due = item.due > now and item.due or 0
  local e = {
    place = where, parked = false, priority = item.priority, queue = queue or item.priority, seq = next_seq(item),
    accepted = item.accepted > 0 and item.accepted or now, due = due, starts = 0, claimed = 0,
    expires = item.ttl > 0 and math.max(item.accepted > 0 and item.accepted or now, item.due) + item.ttl or 0,
    mark_ms = item.mark_ms, retry = 0, attempts = 0, reason = '-',
  }
  if where == 'Q' then
    redis.call('HSET', item.P .. 'bodies', item.id, item.meta .. '\n' .. item.body)
    local blocks = item.priority ~= 'c' and redis.call('EXISTS', item.P .. 'waiting:' .. item.user) == 1
    if due > 0 or blocks then
      e.reason = due > 0 and 'scheduled' or 'order'
      e.retry = due > 0 and due or now + slot(item, e, item.priority ~= 'b') * interval
      e.place = 'D'
      hold_in_deferred(item, e, offset or 0)
    else
      redis.call('ZADD', item.P .. 'queued:' .. e.queue, int(now), item.id)
    end
  end
  save(item, e)
  return e
end

-- Are there too many already? `folds`: it has a collapse key, so it can be folded into another one in the table.
local function too_many(item, folds, max_waiting, max_deferred)
  return redis.call('ZCARD', item.P .. 'deferred') >= max_deferred or
    not folds and redis.call('ZCARD', item.P .. 'waiting:' .. item.user) >= max_waiting
end

-- Head of every script about a message. Returns the entry if it may act, else nil: ended, stale, or somebody else's.
local function message_head(item, interval)
  local e = load(item)
  if not e then
    if redis.call('EXISTS', item.P .. 'done:' .. item.id) == 1 then
      return nil
    end
    if item.accepted > 0 and now - item.accepted >= item.life then
      return nil
    end
    e = accept(item, 'Q', nil, interval or 0)
  end
  if e.place ~= 'Q' then
    return nil
  end
  return e
end

-- Head of every script about a row. Returns the entry, or nil and what becomes of the row: "ended" or "parked".
local function row_head(item)
  local e = load(item)
  if e then
    if e.parked then
      return nil, 'parked'
    end
    return e
  end
  if redis.call('EXISTS', item.P .. 'done:' .. item.id) == 1 then
    return nil, 'ended'
  end
  if now - item.accepted >= item.life and redis.call('GET', item.P .. 'epoch') == item.epoch then
    return nil, 'ended'
  end
  return accept(item, 'H')
end

local function blocked(item, e)
  if e.priority == 'c' then
    return false
  end
  local lowest = redis.call('ZRANGE', item.P .. 'waiting:' .. item.user, 0, 0)[1]
  return lowest and tonumber(lowest) < e.seq
end

-- Books an end; the caller has found the licence.
local function book(item, e, what, entry_id)
  local P, id = item.P, item.id
  leave_queue(item, e)
  redis.call('ZREM', P .. 'waiting:' .. item.user, int(e.seq))
  if what == 'parked' then
    count(P, 'parked')
    e.parked = true
    if item.row then
      hold_in_row(item, e)
    elseif e.place ~= 'D' then
      redis.call('HSET', P .. 'bodies', id, item.meta .. '\n' .. item.body)  -- the meta may say why it failed
      hold_in_deferred(item, e, 0)
    end
    save(item, e)
    return
  end
  if e.place == 'D' or item.row then
    redis.call('ZREM', P .. 'deferred', id)
  end
  redis.call('HDEL', P .. 'ledger', id)
  redis.call('HDEL', P .. 'bodies', id)
  count(P, what)
  if item.row and what == 'delivered' then
    count(P, 'replayed')
  end
  if e.parked then
    count(P, 'parked', -1)
  end
  redis.call('SET', P .. 'done:' .. id, what .. ' ' .. int(now) .. ' ' .. int(e.seq) .. ' ' .. (entry_id or '-'),
    'PX', e.mark_ms)
end

-- Moves the licence to :deferred (message) or to the row. Returns when it may be tried again (us).
local function defer(item, e, reason, wait, interval, offset)
  if UNORDERED[reason] then
    redis.call('ZREM', item.P .. 'waiting:' .. item.user, int(e.seq))
    e.retry = now + wait
  else
    e.retry = now + wait + (slot(item, e, e.priority ~= 'b') - 1) * interval
  end
  e.reason = reason
  if item.row then
    hold_in_row(item, e)
  else
    hold_in_deferred(item, e, offset or 0)
  end
  save(item, e)
  return e.retry
end
