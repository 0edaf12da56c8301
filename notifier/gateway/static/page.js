/* The bare page: one user's feed. Payloads are set as text, never as markup. */
"use strict";

const SHOWN = 200;
const STATES = {
  connecting: "connecting…", open: "connected", waiting: "connection lost, trying again…",
  unauthorized: "the token has expired or is not valid", closed: "not connected",
};
const byId = id => document.getElementById(id);
let feed = null;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

function show(notification) {
  const item = document.createElement("li");
  const about = element("p", "about", "");
  const when = element("time", "", new Date(notification.granted_at * 1000).toLocaleTimeString());
  when.dateTime = new Date(notification.granted_at * 1000).toISOString();
  about.append(element("span", "category", notification.category), when, element("span", "seq", "#" + notification.seq));
  const { payload } = notification;
  const plain = payload && typeof payload.text === "string" ? payload.text : null;
  item.append(about, element("p", plain === null ? "payload code" : "payload", plain ?? JSON.stringify(payload)));
  const list = byId("feed");
  list.prepend(item);
  while (list.children.length > SHOWN) list.lastElementChild.remove();
  byId("empty").hidden = true;
}

function connect(token) {
  if (feed) feed.close();
  byId("feed").replaceChildren();
  byId("empty").hidden = false;
  feed = Notifier.connect({
    token,
    onNotification: show,
    onState: state => {
      byId("state").textContent = STATES[state];
      byId("state").dataset.state = state;
      byId("enter").hidden = state === "open";
    },
  });
}

byId("enter").addEventListener("submit", event => {
  event.preventDefault();
  connect(byId("token").value.trim());
});

// `/#token=...`: the part after # never leaves the browser; it is taken off the address bar at once.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", location.pathname);
  connect(given);
}
