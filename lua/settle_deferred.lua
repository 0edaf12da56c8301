#!lua flags=allow-oom
-- with: ledger
-- The rows have been committed: D becomes H, and Redis lets go of the bodies.
--
-- KEYS[i]  shard prefix of item i
-- ARGV[i]  identity of item i
-- Reply    how many became H

local settled = 0

for i, P in ipairs(KEYS) do
  local item = { P = P, id = ARGV[i] }
  local e = load(item)
  redis.call('ZREM', P .. 'deferred', item.id)
  if e and e.place == 'D' then
    e.place = 'H'
    save(item, e)
    redis.call('HDEL', P .. 'bodies', item.id)
    settled = settled + 1
  end
end
return settled
