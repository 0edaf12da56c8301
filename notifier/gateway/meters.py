"""The gateway's metrics, beside notifier/metrics.py; `/metrics` serves both."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

CLIENTS = Gauge("notifier_gateway_clients", "Clients connected.", ["transport"], multiprocess_mode="livesum")
SENT = Counter("notifier_gateway_sent", "Messages sent to clients.")
READ = Counter("notifier_gateway_reads", "Pages of feeds read, for history, resumes and gaps.")
GAPS = Counter("notifier_gateway_gaps", "Times a client had missed what its feed no longer keeps.")
CLOSED = Counter("notifier_gateway_closed", "Connections ended by the gateway, by close code.", ["code"])
REFUSED = Counter("notifier_gateway_refused", "Connections not let in.", ["kind"])

for _transport in ("websocket", "sse"):  # also a gateway without clients is seen
    CLIENTS.labels(_transport)
