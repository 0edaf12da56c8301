#!lua flags=allow-oom
-- with: ledger
-- A person decided that what is parked shall be tried again: its row waits once more, its starts are forgotten.
--
-- KEYS[i]  shard prefix of item i
-- ARGV[i]  identity of item i
-- Reply    per item 1, or 0 if it is not parked in a row

local reply = {}

for i, P in ipairs(KEYS) do
  local item = { P = P, id = ARGV[i] }
  local e = load(item)
  local parked = e and e.parked and e.place == 'H'
  if parked then
    e.parked, e.starts, e.reason = false, 0, '-'
    save(item, e)
    count(P, 'parked', -1)
  end
  reply[i] = parked and 1 or 0
end
return reply
