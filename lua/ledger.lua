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
-- ARGV     classes, fields: how many classes there are, and how many fields each has (CLASS, and the script's own)
--          per class: kind (m message | r row), life (us), priority (c|n|b), ttl (us), due (us), mark_ms, meta, body:
--            what items have in common, said once however many there are
--          the script's own arguments, then per item ITEM arguments:
--          id, user (tails of keys), class, accepted (us), epoch; then the script's own

local CLASS = 8
local ITEM = 5
local MAX_STARTS = 5
-- A row of another epoch is never called stale, so its mark must outlive it, even where its DELETE has to wait for days.
local ORPHAN_MARK_MS = '604800000'
local SEQ_TTL_S = 7776000
local UNORDERED = { scheduled = true, delivery_failed = true, breaker_open = true, quiet_hours = true, poison = true }

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function int(x)
  return string.format('%.0f', x)
end

-- Where in ARGV the arguments begin that come after the classes.
local function after_classes()
  return 3 + ARGV[1] * ARGV[2]
end

local classes = {}

local function class_of(n)
  local class = classes[n]
  if not class then
    local at = 3 + (n - 1) * ARGV[2]
    class = {
      row = ARGV[at] == 'r', life = tonumber(ARGV[at + 1]), priority = ARGV[at + 2], ttl = tonumber(ARGV[at + 3]),
      due = tonumber(ARGV[at + 4]), mark_ms = ARGV[at + 5], meta = ARGV[at + 6], body = ARGV[at + 7],
      own = at + CLASS,
    }
    class.__index = class
    classes[n] = class
  end
  return class
end

local function item_at(P, at)
  return setmetatable({
    P = P, id = ARGV[at], user = ARGV[at + 1], accepted = tonumber(ARGV[at + 3]), epoch = ARGV[at + 4],
  }, class_of(ARGV[at + 2]))
end

local ENTRY =
  '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

local function load(item)
  local text = redis.call('HGET', item.P .. 'ledger', item.id)
  if not text then
    return nil
  end
  local place, parked, priority, queue, seq, accepted, expires, due, starts, claimed, mark_ms, retry, attempts, reason =
    string.match(text, ENTRY)
  return {
    place = place, parked = parked == '1', priority = priority, queue = queue, seq = tonumber(seq),
    accepted = tonumber(accepted), expires = tonumber(expires), due = tonumber(due), starts = tonumber(starts),
    claimed = tonumber(claimed), mark_ms = mark_ms, retry = tonumber(retry), attempts = tonumber(attempts),
    reason = reason,
  }
end

local function save(item, e)
  redis.call('HSET', item.P .. 'ledger', item.id, string.format(
    '%s %s %s %s %.0f %.0f %.0f %.0f %.0f %.0f %s %.0f %.0f %s', e.place, e.parked and '1' or '0', e.priority, e.queue,
    e.seq, e.accepted, e.expires, e.due, e.starts, e.claimed, e.mark_ms, e.retry, e.attempts, e.reason))
end

local function keep_body(item)
  redis.call('HSET', item.P .. 'bodies', item.id, item.meta .. '\n' .. item.body)
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
      seq = last + 1
      redis.call('SET', key, int(seq))
    end
  end
  if redis.call('TTL', key) < SEQ_TTL_S / 2 then  -- reading is cheaper than writing, which goes to the AOF
    redis.call('EXPIRE', key, SEQ_TTL_S)
  end
  return seq
end

-- Is this arrival within the user's own limit (emission us a token, 0 none; tolerance us)? Counts it if so.
local function within_limit(item, emission, tolerance)
  if emission == 0 then
    return true
  end
  local key = item.P .. 'meter:' .. item.user
  local tat = math.max(tonumber(redis.call('GET', key)) or 0, now) + emission
  if tat - now > tolerance then
    return false
  end
  redis.call('SET', key, int(tat), 'PX', math.ceil((tat - now) / 1000))
  return true
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

-- Are there too many already? `folds`: it has a collapse key, so it can be folded into another one in the table.
local function too_many(item, folds, max_waiting, max_deferred)
  return redis.call('ZCARD', item.P .. 'deferred') >= max_deferred or
    not folds and redis.call('ZCARD', item.P .. 'waiting:' .. item.user) >= max_waiting
end

-- When may it follow what waits already? A few arrivals within his limit find tokens: they go with the next replay, else
-- a user who sends steadily would be one replay behind for ever. What comes beyond that has its slot to wait for.
local function turn(item, e, within, emission, tolerance, interval)
  local place = slot(item, e, item.priority ~= 'b')
  if within and place * emission <= tolerance then
    return 0
  end
  return (place - 1) * interval
end

-- Gives the identity its licence, without counting it. where: 'Q', or 'H' for a row. emission, tolerance: the arrival
-- meter; interval: between two grants, where it has to wait behind others; full: are too many there for it to wait?
-- Returns the entry, with `full` set where it has to be dropped.
local function admit(item, where, emission, tolerance, interval, offset, full)
  local within, seq = within_limit(item, emission, tolerance), next_seq(item)
  local accepted, due = item.accepted > 0 and item.accepted or now, item.due > now and item.due or 0
  local e = {
    -- Arrivals beyond the user's own limit must not queue ahead of others.
    place = where, parked = false, priority = item.priority, queue = within and item.priority or 'b', seq = seq,
    accepted = accepted, due = due, starts = 0, claimed = 0,
    expires = item.ttl > 0 and math.max(accepted, item.due) + item.ttl or 0,
    mark_ms = item.mark_ms, retry = 0, attempts = 0, reason = '-',
  }
  if where == 'Q' then
    keep_body(item)
    local blocks = item.priority ~= 'c' and redis.call('EXISTS', item.P .. 'waiting:' .. item.user) == 1
    if due > 0 or blocks then
      e.full = full and full()
      e.reason = due > 0 and 'scheduled' or 'order'
      e.retry = due > 0 and due or now + turn(item, e, within, emission, tolerance, interval)
      e.place = 'D'
      hold_in_deferred(item, e, offset)
    else
      redis.call('ZADD', item.P .. 'queued:' .. e.queue, int(now), item.id)
    end
  end
  save(item, e)
  return e
end

-- A message or row that no producer of ours, or a ledger since lost, had accepted.
local function accept(item, where, interval)
  count(item.P, 'accepted')
  return admit(item, where, 0, 0, interval or 0, 0)
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
    e = accept(item, 'Q', interval)
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
  if redis.call('GET', item.P .. 'epoch') ~= item.epoch then
    item.mark_ms = ORPHAN_MARK_MS
  elseif now - item.accepted >= item.life then
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

-- Books an end, without counting it; the caller has found the licence.
local function let_go(item, e, what, entry_id)
  local P, id = item.P, item.id
  if e.place == 'Q' then  -- never denied, so it is neither in waiting nor in :deferred
    leave_queue(item, e)
  else
    redis.call('ZREM', P .. 'waiting:' .. item.user, int(e.seq))
    redis.call('ZREM', P .. 'deferred', id)
  end
  redis.call('HDEL', P .. 'ledger', id)
  redis.call('HDEL', P .. 'bodies', id)
  redis.call('SET', P .. 'done:' .. id, string.format('%s %.0f %.0f ', what, now, e.seq) .. (entry_id or '-'),
    'PX', e.mark_ms)
end

-- Books an end, or parks.
local function book(item, e, what, entry_id)
  local P = item.P
  if what == 'parked' then
    redis.call('ZREM', P .. 'waiting:' .. item.user, int(e.seq))
    count(P, 'parked')
    e.parked = true
    if item.row then
      hold_in_row(item, e)
    elseif e.place ~= 'D' then
      keep_body(item)  -- the meta may say why it failed
      hold_in_deferred(item, e, 0)
    end
    save(item, e)
    return
  end
  let_go(item, e, what, entry_id)
  count(P, what)
  if item.row and what == 'delivered' then
    count(P, 'replayed')
  end
  if e.parked then
    count(P, 'parked', -1)
  end
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
