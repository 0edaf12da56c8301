#!lua flags=no-writes
-- Reads what waits in :deferred, oldest first within a shard, without taking it out.
--
-- KEYS[i]  shard prefixes (P ledger, P bodies, P deferred, P epoch are read)
-- ARGV     most items in all
-- Reply    per item: shard's epoch, identity, entry, body (meta JSON, newline, payload JSON)

local left = tonumber(ARGV[1])
local reply = {}

for _, P in ipairs(KEYS) do
  if left <= 0 then
    break
  end
  local ids = redis.call('ZRANGE', P .. 'deferred', 0, left - 1)
  if #ids > 0 then
    local epoch = redis.call('GET', P .. 'epoch') or ''
    for _, id in ipairs(ids) do
      local entry, body = redis.call('HGET', P .. 'ledger', id), redis.call('HGET', P .. 'bodies', id)
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = epoch, id, entry or '', body or ''
    end
    left = left - #ids
  end
end
return reply
