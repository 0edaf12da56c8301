"""Where a user is reached on a channel outside: what the team's own function says.

It is an entry point of the group `notifier.addresses`, a callable `(user_id, channel) -> list[str] | str | None`:

    [project.entry-points."notifier.addresses"]
    shop = "shop.notifications:addresses"
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from notifier import metrics
from notifier.channels import Failed, Outcome, RetryAt
from notifier.errors import ends_process
from notifier.notification import Notification

GROUP = "notifier.addresses"
REMEMBERED_S = 30.0
REMEMBERED = 10_000  # users and channels of one process
MOST = 20  # addresses of one user on one channel
LONGEST = 2_048  # characters of one address

Lookup = Callable[[str, str], object]


class Addresses:
    """Asks the functions, in the order of their names, until one knows an address; remembers that for half a minute.

    What has no address is asked for again each time: it may have registered just now.
    """

    def __init__(self, lookups: Sequence[Lookup] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookups, self._clock = lookups, clock
        self._known: OrderedDict[tuple[str, str], tuple[float, list[str]]] = OrderedDict()

    def of(self, notification: Notification) -> list[str] | Outcome:
        """The addresses, at least one; or what becomes of the notification instead."""
        key = notification.user_id, notification.channel
        until_s, addresses = self._known.get(key, (0.0, []))
        if addresses and self._clock() < until_s:
            return list(addresses)
        try:
            addresses = self._ask(*key)
        except BaseException as error:  # the team's: its text may hold anything; what is ours is told apart by type
            if ends_process(error):
                raise
            problem = str(error) if isinstance(error, _Unusable) else type(error).__name__
            metrics.degraded("addresses", f"{GROUP}: {problem}")
            return RetryAt(f"{GROUP}: {problem}")
        if not addresses:
            return Failed(f"user has no address on channel {notification.channel}")
        self._known[key] = (self._clock() + REMEMBERED_S, addresses)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return list(addresses)

    def _ask(self, user_id: str, channel: str) -> list[str]:
        if self._lookups is None:
            points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
            self._lookups = [point.load() for point in points]
        if not self._lookups:
            raise _Unusable("no such entry point is installed; see docs/channels.md")
        for lookup in self._lookups:
            if addresses := _checked(lookup(user_id, channel)):
                return addresses
        return []


class _Unusable(Exception):
    """What a function gave cannot be used; the text shows none of it."""


def _checked(given: object) -> list[str]:
    if given is None:
        return []
    addresses = [given] if isinstance(given, str) else given
    if not isinstance(addresses, (list, tuple)):
        raise _Unusable(f"gave {type(given).__name__}; give a list of str, a str or None")
    for address in addresses:
        if not isinstance(address, str):
            raise _Unusable(f"gave a list with {type(address).__name__}; an address is a str")
        if len(address) > LONGEST:
            raise _Unusable(f"gave an address of {len(address):,} characters; at most {LONGEST:,}")
    if len(addresses) > MOST:
        raise _Unusable(f"gave {len(addresses):,} addresses for one user; at most {MOST}")
    return list(dict.fromkeys(address for address in addresses if address))


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """One notification went to several addresses: what becomes of it.

    Where one says not now, all are tried again; those that have it know it by its idempotency key. Where some took it
    and others refused for good, it is delivered.
    """
    again = [outcome for outcome in outcomes if isinstance(outcome, RetryAt)]
    if again:
        return max(again, key=lambda outcome: outcome.wait_s)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if len(refused) == len(outcomes):
        return refused[0]
    if refused:
        metrics.degraded("address_refused", refused[0].error)
    return next(outcome for outcome in outcomes if not isinstance(outcome, Failed))
