#!lua flags=no-writes
-- Adds up the books of many shards.
--
-- KEYS[i]  shard prefixes
-- Reply    {now (us), entries, queued critical, queued normal, queued bulk, deferred, oldest publish (us, 0 none),
--          then name, sum of each count}

local clock = redis.call('TIME')
local entries, queued, deferred, oldest, sums, names = 0, { 0, 0, 0 }, 0, 0, {}, {}

for _, P in ipairs(KEYS) do
  local held = redis.call('HLEN', P .. 'ledger')
  local counts = redis.call('HGETALL', P .. 'counts')
  for i = 1, #counts, 2 do
    local name = counts[i]
    if not sums[name] then
      sums[name] = 0
      names[#names + 1] = name
    end
    sums[name] = sums[name] + tonumber(counts[i + 1])
  end
  if held > 0 then
    entries = entries + held
    deferred = deferred + redis.call('ZCARD', P .. 'deferred')
    for i, queue in ipairs({ 'c', 'n', 'b' }) do
      local size = redis.call('ZCARD', P .. 'queued:' .. queue)
      if size > 0 then
        queued[i] = queued[i] + size
        local first = tonumber(redis.call('ZRANGE', P .. 'queued:' .. queue, 0, 0, 'WITHSCORES')[2])
        oldest = oldest == 0 and first or math.min(oldest, first)
      end
    end
  end
end

local reply = { string.format('%.0f', clock[1] * 1000000 + clock[2]), entries, queued[1], queued[2], queued[3], deferred,
  string.format('%.0f', oldest) }
for _, name in ipairs(names) do
  reply[#reply + 1] = name
  reply[#reply + 1] = sums[name]
end
return reply
