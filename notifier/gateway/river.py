"""All feeds at once, for the live page: what flows, and how long each took. Pure but for the clock of the frames."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from notifier.gateway.feed import parse_push

SHOWN = 40  # frames handed over at a time; of more only the dots
DOTS = 600
LONGEST = 2_000  # characters of a frame that are shown
_MARK = b":9:websocket:"
_ACCEPTED = ',"accepted_at":'


class River:
    """Collects pushes until somebody takes them. Bounded: the newest count."""

    def __init__(self) -> None:
        self._frames: deque[str] = deque(maxlen=SHOWN)
        self._dots: deque[tuple[int, float, str]] = deque(maxlen=DOTS)
        self._count = 0

    def add(self, channel: bytes, message: bytes) -> None:
        """A message of a feed's channel; what is no push is passed over."""
        try:
            push = parse_push(message)
            user_id = channel[channel.index(_MARK) + len(_MARK) :].decode()
            at = push.frame.index(_ACCEPTED) + len(_ACCEPTED)
            accepted_ms = 1_000 * float(push.frame[at : push.frame.index(",", at)])
        except ValueError:
            return
        delivered_ms = int(push.id.partition("-")[0])
        self._count += 1
        self._dots.append((delivered_ms, round(max(0.5, delivered_ms - accepted_ms), 1), user_id))
        frame = push.frame if len(push.frame) <= LONGEST else _without_payload(push.frame)
        self._frames.append(f'{{"user":{json.dumps(user_id)},"frame":{frame}}}')

    def take(self) -> str:
        """A message for the page, or "": dots are [delivered (unix ms), took (ms), user], frames {user, frame}."""
        if not self._count:
            return ""
        dots = json.dumps(list(self._dots), separators=(",", ":"))
        text = f'{{"type":"river","count":{self._count},"dots":{dots},"frames":[{",".join(self._frames)}]}}'
        self._frames.clear()
        self._dots.clear()
        self._count = 0
        return text


def _without_payload(frame: str) -> str:
    values: dict[str, Any] = json.loads(frame)
    return json.dumps(values | {"payload": f"({len(frame):,} characters)"})
