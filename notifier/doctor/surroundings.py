"""What lies around the servers: variables, the secret, the gateway, installed packages, the `tasks` module."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from urllib.parse import urlsplit

from notifier.doctor.finding import Finding, ok, problem, warning, words
from notifier.resources import UNSHADOW, shadow
from notifier.settings import MAKE_A_SECRET, SHORTEST_SECRET, Settings, raw_values, unknown

FEW_CHARACTERS = 10  # a random secret of 32 characters has more different ones
OFTEN_SEEN = ("change", "example", "secret", "password", "default", "random-characters", "notifier", "12345")
CELERY_BROKEN = (5, 7)
TIMEOUT_S = 3.0
_MAKE_ONE = f"{MAKE_A_SECRET}, into NOTIFIER_SECRET of every process"


def variables() -> Iterator[Finding]:
    """NOTIFIER_ variables that nothing reads."""
    names = raw_values()
    strangers = unknown(names)
    for name, near in strangers.items():
        hint = f"did you mean {near}?" if near else "`notifier config` lists all there are"
        yield warning("settings.unknown", f"{name} is no setting", "nothing reads it: the default holds", hint)
    if not strangers:
        yield ok("settings.unknown", f"{len(names)} variables set, all known")


def secret(settings: Settings) -> Iterator[Finding]:
    """Long, and not to be guessed. Its text is shown nowhere."""
    text = settings.secret.get_secret_value() if settings.secret else ""
    why = "whoever can guess it reads every user's notifications"
    if not text:
        why = "the gateway does not start without it, and no tokens can be made (processes that only send need none)"
        yield warning("gateway.secret", "NOTIFIER_SECRET is not set", why, _MAKE_ONE)
    elif len(text) < SHORTEST_SECRET:
        why = f"the gateway refuses fewer than {SHORTEST_SECRET} characters: {why}"
        yield problem("gateway.secret", f"NOTIFIER_SECRET has only {len(text)} characters", why, _MAKE_ONE)
    elif len(set(text)) < FEW_CHARACTERS or any(word in text.lower() for word in OFTEN_SEEN):
        yield warning("gateway.secret", "NOTIFIER_SECRET looks like an example, not like chance", why, _MAKE_ONE)
    else:
        yield ok("gateway.secret", f"{len(text)} characters")


def gateway_url(settings: Settings) -> str | None:
    """Where the settings say the gateway is; None where they name neither host nor port."""
    if not {"gateway_host", "gateway_port"} & settings.model_fields_set or not settings.gateway_port:
        return None
    return f"http://{settings.gateway_here}"


def gateway(url: str, *, asked: bool) -> Iterator[Finding]:
    """Answers, and hears state Redis. `asked`: it was named for this run, so it must be there."""
    found, check = (problem if asked else warning), "gateway.reachable"
    why = "open pages get nothing until it is back (they catch up then)"
    where = f"{urlsplit(url).hostname}:{urlsplit(url).port or urlsplit(url).scheme}"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT_S) as reply:  # noqa: S310  http(s)
            json.loads(reply.read(1_000))
    except urllib.error.HTTPError as error:
        mend = "it cannot hear state Redis: see its log" if error.code == 503 else "is this the gateway's address?"
        yield found(check, f"{where} answers {error.code} to /readyz", why, mend)
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        mend = "start it (notifier gateway), or name it: notifier doctor --gateway http://host:port"
        yield found(check, f"{where}: {words(cause) if isinstance(cause, Exception) else cause}", why, mend)
    else:
        yield ok(check, f"{where} is ready")


def packages() -> Iterator[Finding]:
    """Celery is one that does not die."""
    said = version("celery")
    if tuple(int(part) for part in said.split(".")[:2]) >= CELERY_BROKEN:
        why = "a worker that holds a message dies when its Redis broker restarts (celery/celery#9250)"
        yield problem("packages.celery", f"celery {said} is installed", why, "pip install 'celery>=5.6.3,<5.7'")
    else:
        yield ok("packages.celery", f"celery {said}, kombu {version('kombu')}, redis {version('redis')}")


def tasks_module() -> Iterator[Finding]:
    """Whose `tasks` is imported here."""
    if found := shadow():
        why = "`from tasks import send_notification` and `celery -A tasks` mean that one, not ours, here"
        yield warning("tasks.module", f"`import tasks` gives {found}", why, UNSHADOW)
    else:
        yield ok("tasks.module", "`import tasks` gives Notifier's")
