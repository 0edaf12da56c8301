"""A process with one websocket for each user; says what came when. Started by benchmarks.latency, spoken to by lines.

The first line of stdin is {"url", "secret", "users"}; answers "ready". Each further line asks for what has arrived
since: answers a JSON list of [user, payload's "sent_s", received_s] (time.monotonic, one clock for all processes).
"""

from __future__ import annotations

import json
import sys

from notifier.gateway.auth import make_token
from notifier.gateway.server import allow_many_connections
from notifier.lab.sockets import Sockets


def main() -> None:
    """Until stdin ends."""
    allow_many_connections()
    told = json.loads(sys.stdin.readline())
    sockets = Sockets(told["url"], {user: make_token(told["secret"], user, 86_400) for user in told["users"]})
    sockets.start(60.0)
    print("ready", flush=True)
    try:
        for _ in sys.stdin:
            frames, sockets.frames = sockets.frames, []
            heard = [(f.identity.user_id, f.payload["sent_s"], f.received_s) for f in frames]
            print(json.dumps(heard), flush=True)
    finally:
        sockets.stop()


if __name__ == "__main__":
    main()
