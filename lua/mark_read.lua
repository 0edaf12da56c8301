#!lua flags=allow-oom
-- Moves a user's read mark forward, tells the user's open pages, and counts what is unread.
--
-- KEYS[1]  feed (stream)
-- KEYS[2]  read mark (string: the id of the newest entry read)
-- ARGV     id to mark as read, or '' to only count; life of the mark (s)
-- Reply    {read mark (id), unread (entries above it), the feed's last id}; ids are '0-0' where there is none
-- Publishes `read <mark> <unread> <last id>` on the feed's channel when the mark moved.

local feed, key = KEYS[1], KEYS[2]
local PAGE = 100

local function above(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  a_ms, b_ms = tonumber(a_ms), tonumber(b_ms)
  return a_ms > b_ms or (a_ms == b_ms and tonumber(a_seq) > tonumber(b_seq))
end

local newest = redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1)[1]
local last = newest and newest[1] or '0-0'
local mark = redis.call('GET', key) or '0-0'
if above(mark, last) then -- the feed was lost, or has expired
  mark = '0-0'
end
local wanted, moved = ARGV[1], false
if wanted ~= '' then
  if above(wanted, last) then
    wanted = last
  end
  if above(wanted, mark) then
    mark, moved = wanted, true
    redis.call('SET', key, mark, 'EX', ARGV[2])
  end
end

local unread, from = 0, '(' .. mark
repeat
  local page = redis.call('XRANGE', feed, from, '+', 'COUNT', PAGE)
  unread = unread + #page
  from = #page > 0 and '(' .. page[#page][1] or from
until #page < PAGE

if moved then
  redis.call('PUBLISH', feed, 'read ' .. mark .. ' ' .. unread .. ' ' .. last)
end
return { mark, unread, last }
