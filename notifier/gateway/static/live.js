/* The live page. Everything that comes from outside is set as text, never as markup. */
"use strict";

const STATES = {
  connecting: "connecting…", open: "live", waiting: "connection lost, trying again…",
  unauthorized: "the token has expired, or is not one for this page", closed: "not connected",
};
const SERVERS = { state: "State Redis", limiter: "Limiter’s Redis", postgres: "PostgreSQL" };
const RIVER_ROWS = 14, OWN_ROWS = 6;
const byId = id => document.getElementById(id);

let plot = null, socket = null, pauseMs = 250, paused = false, own = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (text, longest) => text.length > longest ? text.slice(0, longest) + "…" : text;
const number = value => value.toLocaleString("en");
const duration = ms => ms < 9.95 ? `${ms.toFixed(1)} ms` : ms < 999.5 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;

function set(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

function line(frame, user) {
  const item = element("li"), tookMs = Number(frame.id.split("-")[0]) - frame.accepted_at * 1000;
  if (user !== null) item.append(element("b", "user", short(user, 40)));
  item.append(element("span", "category", frame.category));
  const { payload } = frame;
  const plain = payload && typeof payload.text === "string" ? payload.text : JSON.stringify(payload);
  item.append(element("span", "payload", short(plain, 200)));
  item.append(element("span", tookMs < Plot.LATE_MS ? "took" : "took late", duration(Math.max(0.5, tookMs))));
  if (frame.digest) item.append(element("span", "digest", `digest of ${frame.digest.count}`));
  return item;
}

function prepend(list, items, most) {
  list.prepend(...items);
  while (list.children.length > most) list.lastElementChild.remove();
}

function showRiver(message) {
  plot.add(message.dots);
  if (!paused) prepend(byId("river"), message.frames.reverse().map(one => line(one.frame, one.user)), RIVER_ROWS);
}

function showSample(sample) {
  for (const name of ["waiting", "replayed", "digested"]) {
    set(name, sample.counts ? number(sample.counts[name]) : "?");
  }
  const total = Object.values(sample.grants).reduce((sum, count) => sum + count, 0);
  for (const part of document.querySelectorAll("#shares i")) {
    part.style.flexGrow = total ? (sample.grants[part.dataset.source] || 0) / total : 0;
  }
  for (const row of document.querySelectorAll(".grants div")) {
    row.lastElementChild.textContent = number(sample.grants[row.dataset.source] || 0);
  }
  showBucket(sample.buckets[byId("user").value]);
  showServers(sample);
}

function showBucket(bucket) {
  set("bucket-user", byId("user").value);
  const meter = byId("bucket");
  if (!bucket) { meter.value = 0; return set("bucket-text", "not known"); }
  meter.max = bucket.burst;
  meter.value = Math.max(0, bucket.tokens);
  set("bucket-text", `${bucket.tokens.toFixed(1)} of ${bucket.burst}`);
}

function showServers(sample) {
  const list = byId("servers"), rows = {};
  for (const [name, up] of Object.entries(sample.servers)) rows[name] = { title: SERVERS[name] || name, up };
  for (const [name, up] of Object.entries(sample.lab)) rows[name] = { title: SERVERS[name] || name, up, switchable: true };
  for (const [name, row] of Object.entries(rows)) {
    let item = list.querySelector(`[data-name="${CSS.escape(name)}"]`);
    if (!item) {
      item = element("li");
      item.dataset.name = name;
      item.append(element("span", "lamp"), element("span", "title", row.title), element("span", "soft word"));
      list.append(item);
    }
    item.classList.toggle("down", !row.up);
    const word = item.querySelector(".word"), said = row.up ? "runs" : "away";
    if (word.textContent !== said) word.textContent = said;
    let button = item.querySelector("button");
    if (row.switchable && !button) {
      button = element("button", "quiet");
      button.type = "button";
      button.addEventListener("click", () => say({ do: button.dataset.does, what: name }));
      item.append(button);
    }
    if (button) {
      button.hidden = !row.switchable;
      button.dataset.does = row.up ? "stop" : "start";
      const does = row.up ? "Stop" : "Start";
      if (button.textContent !== does) { button.textContent = does; button.setAttribute("aria-label", `${does} ${row.title}`); }
    }
  }
}

function say(message) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function showState(state) {
  set("state", STATES[state]);
  byId("state").dataset.state = state;
}

function watch() { say({ do: "watch", user: byId("user").value }); }

function connect(token) {
  showState("connecting");
  const url = new URL("/live", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  let opened = false;
  socket = new WebSocket(url, ["notifier.v1", "bearer." + token]);
  socket.onopen = () => { opened = true; pauseMs = 250; showState("open"); watch(); };
  socket.onmessage = event => {
    const message = JSON.parse(event.data);
    if (message.type === "river") showRiver(message);
    else if (message.type === "sample") showSample(message);
    else if (message.type === "problem") set("problem", message.text);
  };
  socket.onclose = () => {
    showState("waiting");
    setTimeout(() => connect(token), pauseMs * (0.5 + Math.random() / 2));
    pauseMs = Math.min(pauseMs * 2, 5000);
  };
}

function userOf(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")), c => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)).sub;
  } catch { return ""; }
}

function enter(token) {
  const user = userOf(token);
  byId("enter").hidden = true;
  byId("main").hidden = false;
  byId("user").value = user;
  set("own-user", user);
  plot = new Plot(byId("plot"));
  connect(token);
  own = Notifier.connect({
    token,
    onNotification: frame => { byId("own-empty").hidden = true; prepend(byId("own"), [line(frame, null)], OWN_ROWS); },
    onUnread: count => set("unread", number(count)),
    onState: state => { byId("own").dataset.state = state; if (state === "unauthorized") showState(state); },
  });
  setInterval(() => {
    const { rate, p50, p99 } = plot.figures();
    set("rate", rate < 10 ? rate.toFixed(1) : number(Math.round(rate)));
    set("p50", p50 === null ? "–" : duration(p50));
    set("p99", p99 === null ? "–" : duration(p99));
    byId("plot").setAttribute("aria-label", p50 === null
      ? "Latency of every notification in the last minute: none"
      : `Latency of every notification in the last minute: median ${duration(p50)}, 99th percentile ${duration(p99)}`);
  }, 1000);
}

byId("enter").addEventListener("submit", event => { event.preventDefault(); enter(byId("token").value.trim()); });
byId("user").addEventListener("change", watch);
byId("read").addEventListener("click", () => own.markRead());
byId("pause").addEventListener("click", event => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  event.target.textContent = paused ? "Go on" : "Pause";
});
for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", () => { set("problem", ""); say({ do: button.dataset.do, user: byId("user").value }); });
}

// `/#token=...`: the part after # never leaves the browser. It is kept for a reload of this tab, and nowhere else.
const given = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("notifier-live");
if (given) {
  history.replaceState(null, "", location.pathname);
  sessionStorage.setItem("notifier-live", given);
  enter(given);
}
