/* Notifier in the browser: connects to the gateway, resumes where it left off, calls back once for each notification.
 *
 *   const feed = Notifier.connect({ token, onNotification: n => console.log(n.payload) });
 *   feed.markRead();   // all so far, in all tabs
 *   feed.close();
 *
 * token           the user's token, or a function that returns one (or a promise of one), called for each connection
 * onNotification  gets {id, notification_id, seq, category, accepted_at, granted_at, payload, digest?}; each once, in order
 * onUnread        gets the number of unread notifications
 * onState         gets "connecting", "open", "waiting", "unauthorized" (a new token is needed) or "closed"
 * onGap           notifications were missed that the feed no longer keeps
 * url             the gateway's address; default: where this file came from
 * lastId          go on after this id; default: the whole feed comes first
 */
var Notifier = (() => {
  "use strict";
  const home = document.currentScript ? document.currentScript.src : location.href;
  const FIRST_PAUSE_MS = 250, LONGEST_PAUSE_MS = 15000;
  const SILENCE_MS = 30000, PATIENCE_MS = 10000;  // until a silent connection is asked, until it is taken for dead
  const TOKEN_EXPIRED = 4001;

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
    let lastId = options.lastId || null, unread = 0, countedTo = "0-0";
    let socket = null, retry = null, silence = null, pauseMs = FIRST_PAUSE_MS, ended = false;

    const address = () => {
      const url = new URL("/ws", options.url || home);
      url.protocol = url.protocol.replace("http", "ws");
      if (lastId) url.searchParams.set("last_id", lastId);
      return url;
    };

    const count = (number, upTo) => {
      countedTo = upTo;
      if (number !== unread) call("onUnread", unread = number);
    };

    const control = message => {
      if (message.type === "hello") {
        const missed = lastId && !message.recovered;
        lastId = message.last_id;
        pauseMs = FIRST_PAUSE_MS;
        call("onState", "open");
        if (missed) call("onGap", message);
      } else if (message.type === "gap") {
        lastId = message.last_id;
        call("onGap", message);
      }
      if ("unread" in message) count(message.unread, message.counted_to);
    };

    const receive = message => {
      if (message.type) return control(message);
      if (lastId && !newer(message.id, lastId)) return;
      lastId = message.id;
      if (newer(message.id, countedTo)) count(unread + 1, message.id);
      call("onNotification", message);
    };

    // A connection that is gone without a word looks open. Whoever is silent for long is asked.
    const listen = () => {
      clearTimeout(silence);
      silence = setTimeout(() => {
        say({ type: "ping" });
        silence = setTimeout(lose, PATIENCE_MS);
      }, SILENCE_MS);
    };

    const say = message => {
      if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
    };

    const lose = code => {
      clearTimeout(silence);
      if (socket) { socket.onclose = socket.onmessage = null; socket.close(); socket = null; }
      if (ended) return;
      if (code === TOKEN_EXPIRED && typeof options.token !== "function") return stop("unauthorized");
      call("onState", "waiting");
      clearTimeout(retry);
      retry = setTimeout(open, pauseMs * (0.5 + Math.random() / 2));
      pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
    };

    const stop = state => {
      ended = true;
      clearTimeout(retry);
      removeEventListener("online", open);
      lose();
      call("onState", state);
    };

    async function open() {
      if (ended || socket) return;
      clearTimeout(retry);
      call("onState", "connecting");
      let token;
      try {
        token = await (typeof options.token === "function" ? options.token() : options.token);
      } catch { return lose(); }
      if (ended || socket) return;
      if (typeof token !== "string" || expired(token)) return stop("unauthorized");
      socket = new WebSocket(address(), ["notifier.v1", "bearer." + token]);
      socket.onmessage = event => { listen(); receive(JSON.parse(event.data)); };
      socket.onclose = event => lose(event.code);
      listen();
    }

    addEventListener("online", open);
    open();
    return {
      close: () => stop("closed"),
      markRead: id => { if (id || lastId) say({ type: "read", id: id || lastId }); },
      get lastId() { return lastId; },
      get unread() { return unread; },
    };
  }

  return { connect };
})();
