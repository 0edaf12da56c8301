"""Prints notifications to standard output, for development. A line is one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as json_string

from notifier.channels import Delivery, Outcome, Sent


class ConsoleChannel:
    """One line a notification: user_id, notification_id, payload."""

    name = "console"
    lease_s = 15.0

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        """Always sent."""
        for delivery in batch:
            n = delivery.notification
            who = f'"user_id":{json_string(n.user_id)},"notification_id":{json_string(n.notification_id)}'
            sys.stdout.write(f'{{{who},"payload":{n.body}}}\n')
        sys.stdout.flush()
        return [Sent() for _ in batch]
