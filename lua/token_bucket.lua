#!lua
-- Token buckets: decides for many users in one call, all-or-nothing over user, quota and channel, and charges loans.
--
-- A bucket is one integer, its theoretical arrival time (generic cell rate algorithm): it is full while that time is
-- not ahead of now, and holds (now + burst * emission - time) / emission tokens. Loans are charged unconditionally,
-- so it may go negative. An override of a user's limit is kept in the bucket's own value: "time emission burst".
-- A quota is a hash: sub-window number -> grants in it; the oldest of 61 counts whole, so no window exceeds it.
--
-- KEYS   [process]            only when seq > 0: the number of the process's last charge
--        channel bucket...    one for each channel
--        bucket [quota]...    for each item; quota only where its class has one
-- ARGV   seq                  of the charges among the items; charged once however often it is sent; 0: no charges
--        debt                 tokens a user's bucket may be in debt: what all processes can lend
--        channels, classes    how many of each follow
--        emission burst debt                        for each channel
--        emission burst window quota channel        for each class; emission 0: no user limit; quota 0: none pass,
--                                                   window 0: no quota; window is of the 60; channel 0: no limit
--        item...              cost * 4096 + class * 8 + kind; kind 0 normal, 1 critical, 2 bulk, 3 charge of a loan
-- Reply  now, full of each channel (1 or 0, before this call), then for each item
--        wait (0: granted or charged), level * 2 + full (of its bucket, before this item), emission of its bucket (0: none, or none pass)
--        level: 0 none, 1 user, 2 channel, 3 quota
-- Units  integers; times in microseconds of this server's clock. A denied item writes nothing, except where it
--        repairs a time that lies further ahead than burst and debt can explain (the clock or the limit was changed).

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local DECADE = 315532800000000
local DECADE_MS = 315532800000
local DAY = 86400000000
local CHARGE_MEMORY_MS = 3600000
local CRITICAL, BULK, LOAN = 1, 2, 3

local argument, key = 4, 0

local function furthest(emission, burst, debt)
  return now + math.min(emission * (burst + debt), DECADE)
end

local texts = {} -- of times: users whose buckets were full get the same one
local function write(name, tat, override)
  local text = texts[tat]
  if not text then
    text = {string.format('%.0f', tat), string.format('%d', math.max(1, math.ceil((tat - now) / 1000)))}
    texts[tat] = text
  end
  if override == '' then
    redis.call('SET', name, text[1], 'PX', text[2])
  else
    redis.call('SET', name, text[1] .. override, 'PX', DECADE_MS)
  end
end

local seq, debt = tonumber(ARGV[1]), tonumber(ARGV[2])
local charging = false
if seq > 0 then
  key = 1
  charging = seq > tonumber(redis.call('GET', KEYS[1]) or '0')
  if charging then redis.call('SET', KEYS[1], ARGV[1], 'PX', CHARGE_MEMORY_MS) end
end

local reply = {now}
local channels, classes = {}, {}
for i = 1, tonumber(ARGV[3]) do
  local emission, burst = tonumber(ARGV[argument + 1]), tonumber(ARGV[argument + 2])
  local top = furthest(emission, burst, tonumber(ARGV[argument + 3]))
  argument, key = argument + 3, key + 1
  local tat = tonumber(redis.call('GET', KEYS[key]) or '0')
  channels[i] = {name = KEYS[key], emission = emission, tolerance = emission * burst, top = top,
                 tat = math.max(now, math.min(tat, top)), changed = tat > top}
  reply[i + 1] = tat <= now and 1 or 0
end
for i = 1, tonumber(ARGV[4]) do
  classes[i - 1] = {
    emission = tonumber(ARGV[argument + 1]), burst = tonumber(ARGV[argument + 2]),
    window = tonumber(ARGV[argument + 3]), quota = tonumber(ARGV[argument + 4]),
    channel = channels[tonumber(ARGV[argument + 5])],
  }
  argument = argument + 5
end

-- The quota's state: grants in the last 60 sub-windows and the current one, and the time until one more may pass.
local function quota_wait(name, class)
  local current = math.floor(now / class.window)
  local fields, total, live = redis.call('HGETALL', name), 0, {}
  for i = 1, #fields, 2 do
    local window, count = tonumber(fields[i]), tonumber(fields[i + 1])
    if window > current then -- the clock was set back: these were granted by now
      redis.call('HDEL', name, fields[i])
      redis.call('HINCRBY', name, string.format('%.0f', current), count)
      window = current
    end
    if window >= current - 60 then
      total = total + count
      live[#live + 1] = {window, count}
    end
  end
  if total < class.quota then return 0 end
  if class.quota == 0 then return DAY end
  table.sort(live, function(a, b) return a[1] < b[1] end)
  for _, entry in ipairs(live) do
    total = total - entry[2]
    if total < class.quota then return (entry[1] + 61) * class.window - now end
  end
end

local function quota_count(name, class, cost)
  local current = math.floor(now / class.window)
  if redis.call('HINCRBY', name, string.format('%.0f', current), cost) == cost then -- a new sub-window
    for _, field in ipairs(redis.call('HKEYS', name)) do
      if tonumber(field) < current - 60 then redis.call('HDEL', name, field) end
    end
    redis.call('PEXPIRE', name, string.format('%.0f', math.ceil(61 * class.window / 1000)))
  end
end

local items = {} -- most items of a call are alike
local function read_item(text)
  local code = tonumber(text)
  local class = classes[math.floor(code / 8) % 512]
  items[text] = {
    kind = code % 8, class = class, cost = math.floor(code / 4096), channel = class.channel,
    top = furthest(class.emission, class.burst, debt), tolerance = class.emission * class.burst,
  }
  return items[text]
end

local at = #reply
for i = argument + 1, #ARGV do
  local item = items[ARGV[i]] or read_item(ARGV[i])
  local kind, class, channel = item.kind, item.class, item.channel
  key = key + 1
  local name, quota = KEYS[key], nil
  if class.window > 0 then
    key = key + 1
    quota = KEYS[key]
  end

  local emission, burst, override, top, tolerance = class.emission, class.burst, '', item.top, item.tolerance
  local value = redis.call('GET', name)
  local tat = value and tonumber(value) or 0
  if value and tat == 0 and value ~= '0' then
    local a, b, c = string.match(value, '^(%d+) (%d+) (%d+)$')
    tat, emission, burst, override = tonumber(a), tonumber(b), tonumber(c), string.sub(value, #a + 1)
    top, tolerance = furthest(emission, burst, debt), emission * burst
  end
  local full = (emission == 0 or tat <= now) and 1 or 0
  if emission > 0 and tat > top then
    tat = top
    write(name, tat, override)
  elseif tat < now then
    tat = now
  end

  local wait, level = 0, 0
  if kind ~= LOAN then
    if kind ~= CRITICAL then
      if emission > 0 then
        local kept = kind == BULK and math.floor(burst / 2) or 0
        local short = tat + emission * (1 + kept) - tolerance - now
        if short > 0 then wait, level = short, 1 end
      end
      if quota then
        local short = quota_wait(quota, class)
        if short > wait then wait, level = short, 3 end
      end
    end
    if channel then
      local short = channel.tat + channel.emission - channel.tolerance - now
      if short > wait then wait, level = short, 2 end
    end
  end

  if wait == 0 and (kind ~= LOAN or charging) then
    if emission > 0 then write(name, math.min(tat + emission * item.cost, top), override) end
    if quota then quota_count(quota, class, item.cost) end
    if channel then
      channel.tat = math.min(channel.tat + channel.emission * item.cost, channel.top)
      channel.changed = true
    end
  end
  reply[at + 1], reply[at + 2], reply[at + 3] = wait, level * 2 + full, burst == 0 and 0 or emission
  at = at + 3
end

for _, channel in ipairs(channels) do
  if channel.changed then write(channel.name, channel.tat, '') end
end
return reply
