"""Servers that are nodes of a cluster."""

from __future__ import annotations

from notifier.embedded.valkey import Valkey
from tests.support import free_port

SLOTS = 16_384


class Node(Valkey):
    """One of a cluster."""

    bus = 0

    def _config(self) -> list[str]:
        self.bus = self.bus or free_port()
        return [
            *super()._config(),
            "cluster-enabled yes",
            f"cluster-port {self.bus}",
            "cluster-node-timeout 1000",
            "cluster-require-full-coverage no",
        ]
