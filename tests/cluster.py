"""Servers that are nodes of a cluster."""

from __future__ import annotations

from notifier.embedded.valkey import Valkey
from tests.support import free_port

SLOTS = 16_384


class Node(Valkey):
    """One of a cluster."""

    bus = 0

    def _config(self) -> list[str]:
        self.bus = free_port()  # a new one for each try to start: it may be in use
        return [
            *super()._config(),
            "cluster-enabled yes",
            f"cluster-port {self.bus}",
            "cluster-node-timeout 30000",  # on a busy machine none is given up because it waits for its turn
            "cluster-require-full-coverage no",
        ]
