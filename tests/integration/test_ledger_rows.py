"""The protocol's scripts about what waits and what rows hold, on a real Valkey. Test names follow its rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from redis import Redis

from notifier.ledger import Ledger
from notifier.licence import Deferred, Denial, End
from notifier.notification import Identity
from notifier.redis.keys import prefix_of, user_key
from notifier.settings import Settings
from notifier.wire import Message
from tests.ledger import (
    HALF_S,
    NOW,
    RATE_LIMITED,
    Row,
    accept,
    age,
    balanced,
    deliver_rows,
    denied,
    feed,
    note,
    to_rows,
)


def test_deny_moves_it_to_deferred_and_paces_the_slots(ledger: Ledger) -> None:
    messages = [accept(ledger, note()) for _ in range(3)]
    retries = [reply.number for reply in ledger.deny(messages, [RATE_LIMITED] * 3)]
    assert [later - retries[0] for later in retries] == [0, HALF_S, 2 * HALF_S]
    assert ledger.deliver(messages[:1], [NOW])[0].code == "gone"  # D: somebody else holds it
    items = ledger.peek_deferred(10)
    assert [(i.seq, i.reason, i.retry_at_us) for i in items] == [
        (k + 1, "rate_limited", r) for k, r in enumerate(retries)
    ]
    assert ledger.counts().waiting == 3
    balanced(ledger)


def test_order_by_seq_what_comes_after_a_denied_one_waits(ledger: Ledger, client: Redis) -> None:
    first, second = accept(ledger, note()), accept(ledger, note())
    ledger.deny([first], [RATE_LIMITED])
    assert ledger.deliver([second], [NOW])[0].code == "deferred"
    (third,) = ledger.accept([note()])
    assert third.status == "deferred"
    critical = accept(ledger, note(priority="critical"))
    assert ledger.deliver([critical], [NOW])[0].code == "delivered"
    rows = to_rows(ledger)
    assert [reply.action for reply in deliver_rows(ledger, rows[1:])] == ["keep", "keep"]
    assert [reply.action for reply in deliver_rows(ledger, rows)] == ["ended"] * 3
    assert [frame["seq"] for frame in feed(client)] == [4, 1, 2, 3]
    assert ledger.accept([note()])[0].status == "queued"  # `waiting` has emptied
    balanced(ledger)


def test_waiting_kept_without_ttl(ledger: Ledger, client: Redis) -> None:
    denied(ledger, note())
    assert client.ttl(user_key("waiting", "anna", "websocket")) == -1


def test_seq_does_not_restart_while_something_waits(ledger: Ledger, client: Redis) -> None:
    for _ in range(3):
        ledger.deliver([accept(ledger, note())], [NOW])
    denied(ledger, note())
    client.delete(user_key("seq", "anna", "websocket"))
    assert ledger.accept([note()])[0].seq == 5


def test_bulk_and_scheduled_hold_nobody_back(ledger: Ledger) -> None:
    bulk = accept(ledger, note(priority="bulk"))
    ledger.deny([bulk], [RATE_LIMITED])
    later = note(not_before=datetime.now(UTC) + timedelta(hours=1))
    assert ledger.accept([later])[0].status == "deferred"
    assert ledger.accept([note()])[0].status == "queued"
    scheduled = next(item for item in ledger.peek_deferred(10) if item.reason == "scheduled")
    assert scheduled.retry_at_us == later.not_before_us


def test_poison_parks_at_the_fifth_start(ledger: Ledger) -> None:
    again = replace(accept(ledger, note()), again=True)
    assert [ledger.begin([again])[0].code for _ in range(6)] == ["go"] * 4 + ["parked", "gone"]
    (item,) = ledger.peek_deferred(10)
    assert (item.parked, item.reason, item.starts) == (True, "poison", 5)
    (row,) = to_rows(ledger)
    assert deliver_rows(ledger, [row])[0].action == "parked"  # skip_parked: it keeps its licence
    assert ledger.counts().parked == 1
    balanced(ledger)
    assert ledger.unpark([row.notification.identity]) == [True]
    assert deliver_rows(ledger, [row])[0].action == "ended"
    balanced(ledger)


def test_stale_row_of_the_same_epoch_has_ended(ledger: Ledger, client: Redis) -> None:
    n = note()
    message = denied(ledger, n)
    (row,) = to_rows(ledger)
    assert deliver_rows(ledger, [row])[0].action == "ended"
    age(client, n)
    old = replace(row, accepted_us=message.accepted_us - 601_000_000)
    assert deliver_rows(ledger, [old])[0].action == "ended"
    assert len(feed(client)) == 1


def test_epoch_a_row_that_outlived_its_redis_is_accepted_again(ledger: Ledger, client: Redis) -> None:
    denied(ledger, note())
    (row,) = to_rows(ledger)
    client.flushall()
    accept(ledger, note())  # a new epoch
    old = replace(row, accepted_us=row.accepted_us - 601_000_000)
    assert deliver_rows(ledger, [old])[0].action == "ended"
    assert len(feed(client)) == 1
    balanced(ledger)


def test_row_denial_counts_in_waiting(ledger: Ledger) -> None:
    n = note(not_before=datetime.now(UTC) + timedelta(hours=1))
    ledger.accept([n])
    (row,) = to_rows(ledger)
    reply = ledger.deny_rows([row], [RATE_LIMITED])[0]
    assert (reply.action, reply.reason) == ("keep", "rate_limited")
    assert ledger.accept([note()])[0].status == "deferred"
    balanced(ledger)


def test_a_row_denied_again_keeps_its_rank(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.accept([note()])
    messages = [Message(note()) for _ in range(3)]
    ledger.deny(messages, [RATE_LIMITED] * 3)
    rows = to_rows(ledger)
    first, second, third = (r.retry_at_us for r in ledger.deny_rows(rows, [RATE_LIMITED] * 3))
    assert (second - first, third - second) == (HALF_S, HALF_S)


def test_row_written_by_a_worker_takes_the_licence_from_the_queue(ledger: Ledger, client: Redis) -> None:
    n = note()
    message = accept(ledger, n)
    row = Row(n, message.accepted_us, message.epoch)
    assert ledger.deny_rows([row], [RATE_LIMITED])[0].action == "keep"
    assert ledger.deliver([message], [NOW])[0].code == "gone"
    assert not client.exists(prefix_of("anna") + "queued:n")
    assert deliver_rows(ledger, [row])[0].action == "ended"
    balanced(ledger)


def test_carrier_the_newest_live_member_carries_the_digest(ledger: Ledger, client: Redis) -> None:
    ids = [f"like-{k}" for k in range(4)]
    for k in ids:
        ledger.accept([note(notification_id=k, payload=k, collapse_key="post")])
    messages = [Message(note(notification_id=k, payload=k, collapse_key="post")) for k in ids]
    ledger.deny(messages, [RATE_LIMITED] * 4)
    rows = to_rows(ledger)
    assert ledger.cancel(rows[3].notification.identity)
    assert [r.action for r in ledger.deliver_digests([rows], [NOW])] == ["ended"] * 4
    (frame,) = feed(client)
    assert frame["payload"] == "like-2"
    digest = frame["digest"]
    assert isinstance(digest, dict)
    assert (digest["count"], digest["ids"]) == (3, ids[:3])
    assert [r.action for r in ledger.deliver_digests([rows], [NOW])] == ["ended"] * 4  # again: nothing twice
    assert len(feed(client)) == 1
    counts = ledger.counts()
    assert (counts.delivered, counts.digested, counts.dropped) == (1, 2, 1)
    balanced(ledger)


def test_beyond_max_waiting_it_is_dropped_and_counted(client: Redis, settings: Settings) -> None:
    ledger = Ledger(client, settings.model_copy(update={"max_waiting": 2}))
    messages = [accept(ledger, note()) for _ in range(3)]
    assert [r.code for r in ledger.deny(messages, [RATE_LIMITED] * 3)] == ["deferred", "deferred", "dropped"]
    assert ledger.counts().dropped == 1
    balanced(ledger)


def test_held_names_what_a_row_should_hold(ledger: Ledger) -> None:
    n = note("strange:{user}\n☃", notification_id="a:b c")
    denied(ledger, n)
    assert list(ledger.held()) == []
    to_rows(ledger)
    assert list(ledger.held()) == [[Identity("strange:{user}\n☃", "websocket", "a:b c")]]
    assert ledger.drop([n.identity], "reconciled") == [True]
    assert ledger.accept([note("strange:{user}\n☃")])[0].status == "queued"
    balanced(ledger)


def test_book_row_ends(ledger: Ledger) -> None:
    denied(ledger, note())
    (row,) = to_rows(ledger)
    assert ledger.check_rows([row], [HALF_S])[0].action == "go"
    assert ledger.book_rows([row], End.PARKED, "delivery_failed")[0].action == "parked"
    assert ledger.check_rows([row], [HALF_S])[0].action == "parked"
    assert not ledger.cancel(row.notification.identity)
    assert ledger.drop([row.notification.identity], "by hand", parked=True) == [True]
    assert ledger.check_rows([row], [HALF_S])[0].action == "ended"
    balanced(ledger)


def test_peeked_items_carry_all_that_a_row_needs(ledger: Ledger) -> None:
    n = note(payload={"a": "\x00"}, category="like", collapse_key="k", ttl=60)
    message = denied(ledger, n)
    (item,) = ledger.peek_deferred(10)
    assert isinstance(item, Deferred)
    assert item.notification == n
    assert item.expires_us == message.accepted_us + 60_000_000
    assert item.epoch == message.epoch != ""


def test_order_holds_for_channels_outside_too(ledger: Ledger) -> None:
    first, second = accept(ledger, note()), accept(ledger, note())
    ledger.deny([first], [RATE_LIMITED])
    assert ledger.begin([second], lease_us=1_000_000)[0].code == "blocked"
    ledger.deny([second], [replace_reason("order")])
    rows = to_rows(ledger)
    assert [r.action for r in ledger.check_rows(rows[1:], [HALF_S])] == ["keep"]
    assert [r.action for r in ledger.check_rows(rows, [HALF_S] * 2)] == ["go", "go"]  # together, in order


def test_beyond_max_waiting_what_can_fold_is_kept(client: Redis, settings: Settings) -> None:
    ledger = Ledger(client, settings.model_copy(update={"max_waiting": 1}))
    messages = [accept(ledger, note(collapse_key="post")) for _ in range(2)]
    assert [r.code for r in ledger.deny(messages, [RATE_LIMITED] * 2)] == ["deferred", "deferred"]


def replace_reason(reason: str) -> Denial:
    return RATE_LIMITED._replace(reason=reason)


def test_denied_out_of_order_the_earlier_seq_has_the_earlier_slot(ledger: Ledger) -> None:
    first, second, third = (accept(ledger, note()) for _ in range(3))
    retries = [ledger.deny([message], [RATE_LIMITED])[0].number for message in (third, second, first)]
    assert retries == sorted(retries)  # all had rank one: none waits for a slot that a later one holds
    rows = to_rows(ledger)
    again = [r.retry_at_us for r in ledger.deny_rows(rows, [RATE_LIMITED] * 3)]
    assert [later - again[0] for later in again] == [0, HALF_S, 2 * HALF_S]


def test_what_comes_while_too_many_wait_is_dropped_at_once(client: Redis, settings: Settings) -> None:
    ledger = Ledger(client, settings.model_copy(update={"max_waiting": 3, "max_deferred": 5}))
    ledger.deny([accept(ledger, note())], [RATE_LIMITED])
    assert [ledger.accept([note()])[0].status for _ in range(4)] == ["deferred", "deferred", "dropped", "dropped"]
    folding = [ledger.accept([note(collapse_key="post")])[0].status for _ in range(3)]
    assert folding == ["deferred", "deferred", "dropped"]
    assert ledger.accept([note(priority="critical")])[0].status == "queued"
    balanced(ledger)


def test_what_follows_a_waiting_one_within_the_limit_is_due_with_it(ledger: Ledger) -> None:
    """Else who sends steadily, within his limit, would stay one replay behind for ever."""
    ledger.deny([accept(ledger, note())], [RATE_LIMITED._replace(wait_us=1)])
    (followed,) = ledger.accept([note()])
    assert followed.status == "deferred"
    flood = ledger.accept([note() for _ in range(20)])
    due = {item.seq: item.retry_at_us for item in ledger.peek_deferred(100)}
    assert due[followed.seq] <= ledger.now_us()
    assert due[flood[-1].seq] >= flood[-1].accepted_us + 20 * HALF_S  # beyond the limit: its slot
