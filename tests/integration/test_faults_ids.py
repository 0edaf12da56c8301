"""Ids that look like keys, patterns, queues or each other are just ids."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest

from notifier.errors import InvalidNotification
from notifier.limit import Limit
from notifier.notification import Notification
from notifier.runtime import Runtime
from notifier.wire import Message
from tests.deadletters import MakeBench

STRANGE = [
    "a:b", "a", "b", "{x}", "{}", "a{b}c", "*", "?", "[a-z]", "unacked", "unacked_index", "celery", "notifier.normal",
    "_kombu.binding.celery", "0", "1", "-1", "1.0", "None", "null", "true", " ", "  a  ", "\t", "a\nb", "é", "e\u0301",
    "\U0001f514" * 50, "x" * 512, "%s", "%",
    "'; DROP TABLE dead_letters; --", '"', "\\", "../..", "a/b", "<b>", "\u202e", "\ufeff",
]  # fmt: skip


def test_every_user_has_a_bucket_and_a_feed_of_his_own(make_bench: MakeBench) -> None:
    """veryfront/veryfront-code#3241: `a:b` + `c` is not `a` + `b:c`; denied and replayed, all of them arrive."""
    bench = make_bench(user_limit=Limit.parse("1/day burst 1"), local_bucket=Limit.parse("off"))
    sent = [
        Notification.create(user, {"to": user, "n": n}, notification_id=f"{n}:{user}"[:200])
        for user in STRANGE
        for n in (0, 1)
    ]
    accepted = bench.ledger.accept(sent)
    messages = [Message(n, accepted_us=a.accepted_us, epoch=a.epoch) for n, a in zip(sent, accepted, strict=True)]
    with closing(Runtime(bench.settings, worker=True)) as worker:
        worker.pipeline.handle(messages)
    for user in STRANGE:
        assert [frame["payload"] for frame in bench.feed(user)] == [{"to": user, "n": 0}], repr(user)
    bench.replay.spill()
    assert bench.sql("SELECT count(*) FROM dead_letters")[0][0] == len(STRANGE)
    unlimited = make_bench(user_limit=Limit.parse("off"))
    bench.make_due()
    unlimited.replay.run()
    for user in STRANGE:
        assert [frame["payload"]["n"] for frame in bench.feed(user)] == [0, 1], repr(user)
    assert bench.balanced()
    assert bench.sql("SELECT count(*) FROM dead_letters")[0][0] == 0


def test_a_number_and_its_text_are_one_user() -> None:
    """Whatever a caller has at hand: an int, a str and a UUID name users by their text."""
    one = uuid.UUID(int=1)
    assert Notification.create(1, "x").user_id == Notification.create("1", "x").user_id == "1"
    assert Notification.create(one, "x").user_id == str(one)


@pytest.mark.parametrize("user", ["", None, True, 1.5, b"a", [], {}, "x" * 513, "a\x00b", "\ud800"])
def test_what_is_no_user_is_refused_at_the_call(user: Any) -> None:
    """ujeenet/rustango#1261: no id must not mean one bucket shared by all."""
    with pytest.raises(InvalidNotification, match="user_id"):
        Notification.create(user, "x")
