"""Preferences come from a function of somebody else's: whatever it does, nothing goes that might be unwanted."""

from __future__ import annotations

import os
import re
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest

from notifier import metrics, preferences
from notifier.deadletters.digest import DENIED
from notifier.errors import InvalidPreferences
from notifier.licence import Reason
from notifier.notification import Notification
from notifier.preferences import BATCH_S, Answers, Preferences, QuietHours
from notifier.resources import lua

NIGHT = QuietHours(time(22), time(7), "Europe/Berlin")
AT_NIGHT_US = int(datetime(2026, 6, 1, 22, tzinfo=UTC).timestamp()) * 1_000_000
BY_DAY_US = AT_NIGHT_US + 10 * 3_600 * 1_000_000


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "_current", None)
    monkeypatch.setattr(preferences, "_looked", False)
    monkeypatch.setattr(metrics, "_last", {})


def note(user: str = "anna", **options: Any) -> Notification:
    return Notification.create(user, 1, **options)


def reason(given: object, at_us: int = AT_NIGHT_US, **options: Any) -> str:
    (objection,) = Answers(lambda: lambda _user: given).objections([note(**options)], at_us, 30)
    return objection.reason if objection else ""


@pytest.mark.parametrize(("opted_out", "category", "channel", "wanted"), [
    ({"like"}, "like", "websocket", False),
    ({"like"}, "comment", "websocket", True),
    ({("like", "webhook")}, "like", "webhook", False),
    ({("like", "webhook")}, "like", "websocket", True),
    ({("like", "webhook"), "security"}, "security", "websocket", False),
    (set(), "like", "websocket", True),
])  # fmt: skip
def test_opted_out(opted_out: set[str | tuple[str, str]], category: str, channel: str, wanted: bool) -> None:
    given = Preferences(opted_out)
    assert reason(given, category=category, channel=channel) == ("" if wanted else "opted_out")
    assert reason(given, category=category, channel=channel, priority="critical") == ("" if wanted else "opted_out")


def test_quiet_hours_hold_all_but_what_is_critical_until_they_end() -> None:
    given = Preferences(quiet_hours=NIGHT)
    assert reason(given) == reason(given, priority="bulk") == "quiet_hours"
    assert reason(given, priority="critical") == ""
    assert reason(given, BY_DAY_US) == ""
    (objection,) = Answers(lambda: lambda _user: given).objections([note()], AT_NIGHT_US, 30)
    assert objection
    assert objection.denial().wait_us == 7 * 3_600 * 1_000_000
    assert reason(Preferences({"default"}, NIGHT)) == "opted_out"


def test_nobody_asked_or_nothing_said_is_no_objection() -> None:
    assert reason(None) == reason(Preferences()) == ""
    assert not preferences.asked()
    assert preferences.objections([note()], AT_NIGHT_US, 30) == [None]


@pytest.mark.parametrize("given", [{"opted_out": "secret"}, ["secret"], "secret", 7, True, object()])
def test_what_cannot_be_used_waits_and_is_named_but_not_shown(given: object) -> None:
    for priority in ("normal", "critical"):
        items = [note(priority=priority)]
        (objection,) = Answers(lambda: lambda _user: given).objections(items, BY_DAY_US, 30)
        assert objection
        assert objection.reason == "preferences_unavailable"
        assert 2_000_000 < objection.wait_us < 8_000_000
        assert objection.error == f"notifier.preferences: gave {type(given).__name__}; give Preferences or None"


def test_what_is_no_exception_waits_too() -> None:
    def lookup(_user_id: str) -> None:
        raise CancelledError

    (objection,) = Answers(lambda: lookup).objections([note()], BY_DAY_US, 30)
    assert objection and objection.error == "notifier.preferences: CancelledError"


def test_an_exception_waits_and_keeps_its_type_only(caplog: pytest.LogCaptureFixture) -> None:
    def lookup(user_id: str) -> Preferences | None:
        if user_id == "anna":
            raise ConnectionError("postgresql://shop:password@db")
        return None

    preferences.use(lookup)
    anna, bert = preferences.objections([note("anna"), note("bert")], BY_DAY_US, 30)
    assert anna
    assert anna.error == "notifier.preferences: ConnectionError"
    assert bert is None
    assert "degraded: preferences: notifier.preferences: ConnectionError; notifications of 1 users wait" in caplog.text
    assert "password" not in caplog.text


def test_bad_preferences_made_in_the_function_say_what_is_wrong() -> None:
    preferences.use(lambda _user: Preferences(quiet_hours=QuietHours(time(22), time(7), "Mars/Base")))
    (objection,) = preferences.objections([note()], BY_DAY_US, 30)
    assert objection
    assert objection.error.startswith("notifier.preferences: QuietHours.tz: 'Mars/Base' is no time zone")


@pytest.mark.parametrize(("fields", "problem"), [
    ({"opted_out": "like"}, "Preferences.opted_out: must be a set, not str"),
    ({"opted_out": ["like"]}, "Preferences.opted_out: must be a set, not list"),
    ({"opted_out": {7}}, "Preferences.opted_out: must hold categories and"),
    ({"opted_out": {""}}, "Preferences.opted_out: must hold categories and"),
    ({"opted_out": {("like", "webhook", "x")}}, "Preferences.opted_out: must hold categories and"),
    ({"opted_out": {("like", None)}}, "Preferences.opted_out: must hold categories and"),
    ({"opted_out": {str(k) for k in range(1_001)}}, "Preferences.opted_out: has 1,001 entries; at most 1,000"),
    ({"quiet_hours": ("22:00", "07:00")}, "Preferences.quiet_hours: must be QuietHours or None, not tuple"),
])  # fmt: skip
def test_fields_are_checked(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPreferences, match=problem):
        Preferences(**fields)


def test_preferences_do_not_change_with_the_set_they_were_made_of() -> None:
    given = {"like"}
    made = Preferences(given)
    given.clear()
    assert made == Preferences(frozenset({"like"}))


class Shop:
    """A function that takes a second, on a clock of its own, and knows who asked."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now_s, self.takes_s = 0.0, takes_s
        self.asked: list[str] = []
        self.given: Preferences | None = None
        self.answers = Answers(lambda: self.of, clock=lambda: self.now_s)

    def of(self, user_id: str) -> Preferences | None:
        self.asked.append(user_id)
        self.now_s += self.takes_s
        return self.given

    def objects(self, *users: str, remembered_s: float = 30.0) -> list[str]:
        found = self.answers.objections([note(user) for user in users], BY_DAY_US, remembered_s)
        return [objection.reason if objection else "" for objection in found]


def test_answers_are_remembered_for_a_while_none_too() -> None:
    shop = Shop()
    assert shop.objects("anna") == [""]
    shop.given, shop.now_s = Preferences({"default"}), 29.0
    assert shop.objects("anna") == [""]
    shop.now_s = 30.0
    assert shop.objects("anna") == ["opted_out"]
    assert shop.asked == ["anna", "anna"]


def test_without_memory_a_user_is_asked_for_once_a_batch() -> None:
    shop = Shop()
    for _ in range(2):
        shop.objects("anna", "bert", "anna", remembered_s=0)
    assert shop.asked == ["anna", "bert"] * 2


def test_the_last_users_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "REMEMBERED", 2)
    shop = Shop()
    shop.objects("anna", "bert")
    shop.objects("anna")
    shop.objects("cleo")  # pushes out bert, who was not seen for longest
    shop.objects("anna")
    shop.objects("bert")
    assert shop.asked == ["anna", "bert", "cleo", "bert"]


def test_failures_are_not_remembered() -> None:
    shop = Shop()
    shop.given = 7  # type: ignore[assignment]
    assert shop.objects("anna") == ["preferences_unavailable"]
    shop.given = None
    assert shop.objects("anna") == [""]


def test_the_function_is_looked_for_until_it_is_found() -> None:
    looked: list[bool] = []

    def find() -> object:
        looked.append(True)
        if len(looked) == 1:
            raise ImportError
        return lambda _user: None

    answers = Answers(find)
    first, *others = (answers.objections([note(user)], BY_DAY_US, 30)[0] for user in ("anna", "bert", "cleo"))
    assert first
    assert (first.error, others, len(looked)) == ("notifier.preferences: ImportError", [None, None], 2)


def test_a_slow_function_holds_up_a_batch_for_a_while_only() -> None:
    shop = Shop(takes_s=BATCH_S / 2)
    assert shop.objects("anna", "bert", "cleo", "anna") == ["", "", "preferences_unavailable", ""]
    assert shop.objects("cleo") == [""]


def test_threads_share_what_is_remembered() -> None:
    shop = Shop()
    users = [f"user-{k}" for k in range(50)]
    threads = [threading.Thread(target=shop.objects, args=users) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.objects(*users) == [""] * 50
    assert len(shop.asked) <= 200


def test_a_child_forked_while_another_thread_asks_can_ask() -> None:
    preferences.use(lambda _user: Preferences({"default"}))
    assert preferences._current
    with preferences._current._lock:
        pid = os.fork()
        if pid == 0:
            found = preferences.objections([note()], BY_DAY_US, 30)
            os._exit(0 if found[0] and found[0].reason == "opted_out" else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_lua_and_python_agree_on_what_holds_newer_ones_back() -> None:
    (named,) = re.findall(r"^local UNORDERED = \{(.*)\}$", lua("ledger"), re.MULTILINE)
    unordered = set(re.findall(r"(\w+) = true", named))
    assert {*DENIED} == {*Reason} - unordered - {Reason.MAX_WAITING}


# ---- the entry point


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Install a package of the team's with these entry points."""
    name = "shop_with_preferences"
    (tmp_path / f"{name}.py").write_text(
        "from notifier.preferences import Preferences\n\n\n"
        'def of(user_id):\n    return Preferences({"default"}) if user_id == "anna" else None\n'
    )

    def installed(lines: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[notifier.preferences]\n{lines}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield installed
    sys.modules.pop(name, None)


def test_an_installed_function_is_asked(install: Callable[[str], None]) -> None:
    install("shop = shop_with_preferences:of")
    assert preferences.asked()
    anna, bert = preferences.objections([note("anna"), note("bert")], BY_DAY_US, 30)
    assert anna
    assert (anna.reason, bert) == ("opted_out", None)
    preferences.use(lambda _user: None)  # in code wins
    assert preferences.objections([note("anna")], BY_DAY_US, 30) == [None]


@pytest.mark.parametrize(("lines", "problem"), [
    ("shop = shop_with_preferences:missing", "shop_with_preferences:missing cannot be loaded: AttributeError"),
    ("shop = no_such_package_of_a_shop:of", "no_such_package_of_a_shop:of cannot be loaded: ModuleNotFoundError"),
    ("a = x:y\nb = x:z", "2 entry points are installed (a, b); there may be one"),
    ("shop = shop_with_preferences", "is module; it must be a function of a user id"),
])  # fmt: skip
def test_what_cannot_be_asked_lets_nothing_go(install: Callable[[str], None], lines: str, problem: str) -> None:
    install(lines)
    (objection,) = preferences.objections([note()], BY_DAY_US, 30)
    assert objection
    assert objection.error == f"notifier.preferences: {problem}"
