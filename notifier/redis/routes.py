"""One Redis or a cluster of them behind one `call`: every command goes to the node that owns its first key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError, ResponseError

from notifier.redis.client import Command, Connections, connect, place
from notifier.redis.scripts import Argument

SLOTS = 16_384
Address = tuple[str, int]


class Routes:
    """As Connections, over however many nodes there are. `discover` finds out; before it, there is one.

    Safe between threads. Not between processes. Opens nothing before the first call.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.clustered = False
        self._client = connect(url, timeout_s)
        self._first = Connections(self._client)
        self._nodes: dict[Address, Connections] = {}
        self._slots: list[Address] = []

    @property
    def place(self) -> str:
        """Of the first node, for people."""
        return place(self._client.connection_pool.connection_kwargs)

    def discover(self) -> None:
        """Ask whether this is a cluster, and who owns what. Raises redis-py's errors."""
        last: Exception | None = None
        for connections in (self._first, *self._nodes.values()):
            try:
                (info,) = connections.call([("INFO", "cluster")])
                if isinstance(info, ResponseError):  # forbidden by an ACL: then it is one server
                    return
                if b"cluster_enabled:1" not in info:
                    return
                (slots,) = connections.call([("CLUSTER", "SLOTS")])
            except (RedisError, OSError) as error:
                last = error
                continue
            if isinstance(slots, Exception):
                raise slots
            self._learn(slots)
            return
        if last is not None:
            raise last

    def _learn(self, ranges: Sequence[Any]) -> None:
        home = self._client.connection_pool.connection_kwargs.get("host", "localhost")
        owners: list[Address] = [(home, 0)] * SLOTS
        for first, last, node, *_ in ranges:
            host = node[0].decode() if node[0] else home
            owners[first : last + 1] = [(host, node[1])] * (last + 1 - first)
        for address in set(owners):
            if address[1]:
                self._node(address)
        self._slots = owners
        self.clustered = True

    def _node(self, address: Address) -> Connections:
        host, port = address
        return self._nodes.setdefault(address, Connections(self._client, host=host, port=port))

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands, then read all replies: one round trip, and one more for keys that have moved.

        An error reply stands in its place in the list. Raises redis-py's ConnectionError or TimeoutError.
        """
        if not self.clustered:
            return self._first.call(commands)
        replies: list[Any] = [None] * len(commands)
        homes = [self._slots[slot_of(command)] for command in commands]
        self._exchange(commands, homes, range(len(commands)), replies)
        moved = [n for n, reply in enumerate(replies) if isinstance(reply, AskError)]  # MOVED is one, too: not executed
        if moved:
            for n in moved:
                homes[n] = (replies[n].host or homes[n][0], replies[n].port)  # no host: the same, by another port
                if isinstance(replies[n], MovedError):
                    self._slots[replies[n].slot_id] = homes[n]
            asking = {n for n in moved if not isinstance(replies[n], MovedError)}
            self._exchange(commands, homes, moved, replies, asking)
        return replies

    def everywhere(self, command: Command) -> list[Any]:
        """The replies of all nodes to one command. Raises as `call`."""
        if not self.clustered:
            return self._first.call([command])
        return [node.call([command])[0] for node in [self._node(address) for address in set(self._slots)]]

    def _exchange(
        self,
        commands: Sequence[Command],
        homes: Sequence[Address],
        which: Sequence[int],
        replies: list[Any],
        asking: set[int] | frozenset[int] = frozenset(),
    ) -> None:
        by_node: dict[Address, list[int]] = {}
        for n in which:
            by_node.setdefault(homes[n], []).append(n)
        sent = []
        try:
            for address, numbers in by_node.items():
                node = self._node(address)
                batch = [c for n in numbers for c in ([("ASKING",)] if n in asking else []) + [commands[n]]]
                sent.append((node, numbers, len(batch), node.send(batch)))
            while sent:
                node, numbers, count, connection = sent[0]
                read = iter(node.read(connection, count))
                del sent[0]
                for n in numbers:
                    if n in asking:
                        next(read)
                    replies[n] = next(read)
        except BaseException:
            for _, _, _, connection in sent:
                connection.disconnect()  # its replies would be taken for those of the next call
            raise

    def close(self) -> None:
        """Close what is idle. A later call opens anew."""
        for connections in (self._first, *self._nodes.values()):
            connections.close()


def slot_of(command: Command) -> int:
    """Of the first key: scripts name theirs after their number, others begin with it."""
    key: Argument = command[3] if command[0] in ("EVALSHA", "EVAL") and int(command[2]) > 0 else command[1]
    return int(key_slot(key if isinstance(key, bytes) else str(key).encode()))
