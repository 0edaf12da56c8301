#!lua flags=allow-oom
-- with: ledger
-- What was last published to a queue before a probe that has long come back is lost: takes it to be published again.
--
-- KEYS[i]  shard prefixes
-- ARGV     queue (c|n|b), before (us), most items in all
-- Reply    per item: shard's epoch, identity, entry, body (meta JSON, newline, payload JSON). Its publishing time is now.

local queue, before, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local reply = {}

for _, P in ipairs(KEYS) do
  if left <= 0 then
    break
  end
  local key = P .. 'queued:' .. queue
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. before, 'LIMIT', 0, left)
  local epoch = #ids > 0 and redis.call('GET', P .. 'epoch') or ''
  for _, id in ipairs(ids) do
    local entry, body = redis.call('HGET', P .. 'ledger', id), redis.call('HGET', P .. 'bodies', id)
    if entry and body then
      redis.call('ZADD', key, int(now), id)
      count(P, 'republished')
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = epoch, id, entry, body
    else
      redis.call('ZREM', key, id)
    end
  end
  left = left - #ids
end
return reply
