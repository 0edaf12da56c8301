"""Every error that Notifier raises on purpose, and what is kept of the text of others.

NotifierError
├── SettingsError            a setting is missing or bad; names the variable, never shows a secret
├── InvalidNotification      an argument of delay() or notify(); also a ValueError
│   └── InvalidRecipients    some of many cannot be; all others were accepted
├── InvalidPreferences       a field of Preferences or QuietHours; also a ValueError
├── NotAccepted              neither the ledger nor the broker took it; retry with the same id
├── ExtraMissing             a command needs an optional extra; names it
└── Unavailable              a server cannot be used now
    ├── StateUnavailable     state Redis
    ├── LimiterUnavailable   limiter Redis
    └── DatabaseUnavailable  PostgreSQL, or its schema
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_ERROR = 2_000  # characters of another program's error that are kept


class NotifierError(Exception):
    """Base of everything below."""


class SettingsError(NotifierError):
    """A setting is missing or bad."""


class InvalidNotification(NotifierError, ValueError):
    """An argument cannot be accepted: `argument` names it, the text says why and what would do."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument

    def __reduce__(self) -> tuple[type[InvalidNotification], tuple[str, str]]:
        return type(self), (self.argument, str(self).removeprefix(f"{self.argument}: "))


class InvalidRecipients(InvalidNotification):
    """Some recipients of a call cannot be; all others were accepted.

    `rejected` maps the position in the call to what is wrong there, `notification_id` is what the others got.
    """

    def __init__(self, notification_id: str, rejected: Mapping[int, str]) -> None:
        self.notification_id = notification_id
        self.rejected = dict(rejected)
        position, problem = next(iter(self.rejected.items()))
        more = f", and {len(self.rejected) - 1:,} more (see .rejected)" if len(self.rejected) > 1 else ""
        super().__init__(f"user_ids[{position}]", f"{problem}{more}; all other recipients were accepted")

    def __reduce__(self) -> tuple[type[InvalidRecipients], tuple[str, dict[int, str]]]:  # type: ignore[override]
        return type(self), (self.notification_id, self.rejected)


class InvalidPreferences(NotifierError, ValueError):
    """A field of Preferences or QuietHours cannot be used: `field` names it, the text says why and what would do."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field

    def __reduce__(self) -> tuple[type[InvalidPreferences], tuple[str, str]]:
        return type(self), (self.field, str(self).removeprefix(f"{self.field}: "))


class NotAccepted(NotifierError):
    """Neither the ledger nor the broker is known to have it; sending again with `notification_id` is safe for a while.

    For ten minutes; for NOTIFIER_DEDUPE_WINDOW (one hour) with an id of your own choice.

    `recipients` are the user ids that were not accepted, `notification_id` the id to retry with. Where each had an id
    of its own (notify_many), `notification_id` is "", and `notification_ids` has one for each of `recipients`.
    """

    def __init__(self, notification_id: str, recipients: Sequence[str], notification_ids: Sequence[str] = ()) -> None:
        self.notification_id = notification_id
        self.recipients = list(recipients)
        self.notification_ids = list(notification_ids) or [notification_id] * len(self.recipients)
        who = repr(self.recipients[0]) if len(self.recipients) == 1 else f"{len(self.recipients)} recipients"
        if notification_id:
            what, again = f"notification {notification_id!r} to {who} was", f"it again with {notification_id=}"
        else:
            what = f"{len(self.recipients)} notifications, the first of them {self.notification_ids[0]!r}, were"
            again = "the same objects again (see .notification_ids)"
        super().__init__(f"{what} not accepted: state Redis and the broker are both unavailable; send {again}")

    def __reduce__(self) -> tuple[type[NotAccepted], tuple[str, list[str], list[str]]]:
        return type(self), (self.notification_id, self.recipients, self.notification_ids)


class ExtraMissing(NotifierError):
    """A command needs an optional extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'celery-notifier[{extra}]'")


class Unavailable(NotifierError):
    """A server cannot be used now."""


class StateUnavailable(Unavailable):
    """State Redis (ledger, feeds) cannot be used now. `ambiguous`: the call may have run, its reply was lost."""

    def __init__(self, reason: str, *, ambiguous: bool = False) -> None:
        super().__init__(reason)
        self.ambiguous = ambiguous


class LimiterUnavailable(Unavailable):
    """The limiter's Redis cannot be used now."""


class DatabaseUnavailable(Unavailable):
    """PostgreSQL, or the schema in it, cannot be used now."""


def clean_error(error: object) -> str:
    """An error's text as Redis and PostgreSQL can keep it: no NUL, no lone surrogate, not endless."""
    text = error if isinstance(error, str) else type(error).__name__
    return text[:MAX_ERROR].replace("\0", "").encode(errors="replace").decode()


def ends_process(error: BaseException) -> bool:
    """Whether this ends the process, and is no failure of the code, say a plugin's, that it came out of.

    Ctrl-C and SystemExit: a pool child that is told to end gets one wherever it is. What else is no Exception is a
    failure, as asyncio's CancelledError.
    """
    return isinstance(error, KeyboardInterrupt | SystemExit)
