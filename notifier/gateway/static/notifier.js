/* Notifier in the browser: connects to the gateway, resumes where it left off, calls back once for each notification.
 *
 *   const feed = Notifier.connect({ token, onNotification: n => console.log(n.payload) });
 *   feed.close();
 *
 * token           the user's token, or a function that returns one (or a promise of one): called for each connection
 * onNotification  gets {id, notification_id, seq, category, accepted_at, granted_at, payload, digest?}; once each, in order
 * onState         gets "connecting", "open", "waiting", "unauthorized" or "closed"
 * onGap           notifications were missed that the feed no longer keeps
 * url             the gateway's address; default: where this file came from
 * lastId          go on after this id; default: the whole feed comes first
 */
var Notifier = (() => {
  "use strict";
  const home = document.currentScript ? document.currentScript.src : location.href;
  const FIRST_PAUSE_MS = 250, LONGEST_PAUSE_MS = 15000;

  const newer = (a, b) => {
    const [aMs, aSeq] = a.split("-").map(Number), [bMs, bSeq] = b.split("-").map(Number);
    return aMs > bMs || (aMs === bMs && aSeq > bSeq);
  };

  const expired = token => {
    try {
      const claims = JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
      return claims.exp * 1000 <= Date.now();
    } catch { return false; }
  };

  function connect(options) {
    const call = (name, value) => { if (options[name]) options[name](value); };
    let lastId = options.lastId || null, socket = null, timer = null, pauseMs = FIRST_PAUSE_MS, ended = false;

    const address = () => {
      const url = new URL("/ws", options.url || home);
      url.protocol = url.protocol.replace("http", "ws");
      if (lastId) url.searchParams.set("last_id", lastId);
      return url;
    };

    const receive = text => {
      const message = JSON.parse(text);
      if (message.type === "hello" || message.type === "gap") {
        const missed = message.type === "gap" || (lastId && !message.recovered);
        lastId = message.last_id;
        pauseMs = FIRST_PAUSE_MS;
        if (message.type === "hello") call("onState", "open");
        if (missed) call("onGap", message);
      } else if (!message.type && (!lastId || newer(message.id, lastId))) {
        lastId = message.id;
        call("onNotification", message);
      }
    };

    const later = () => {
      if (ended || timer) return;
      call("onState", "waiting");
      timer = setTimeout(open, pauseMs * (0.5 + Math.random() / 2));
      pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
    };

    const stop = state => { ended = true; clearTimeout(timer); if (socket) socket.close(); call("onState", state); };

    async function open() {
      clearTimeout(timer);
      timer = null;
      call("onState", "connecting");
      let token;
      try {
        token = await (typeof options.token === "function" ? options.token() : options.token);
      } catch { return later(); }
      if (ended) return;
      if (typeof token !== "string" || expired(token)) return stop("unauthorized");
      const mine = socket = new WebSocket(address(), ["notifier.v1", "bearer." + token]);
      mine.onmessage = event => { if (socket === mine) receive(event.data); };
      mine.onclose = () => { if (socket === mine) { socket = null; later(); } };
    }

    addEventListener("online", () => { if (timer) open(); });
    open();
    return { close: () => stop("closed"), get lastId() { return lastId; } };
  }

  return { connect };
})();
