"""The protocol's scripts on a real Valkey. Test names follow the rules of the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from notifier.embedded.valkey import Valkey
from notifier.errors import StateUnavailable
from notifier.ledger import Ledger
from notifier.licence import Deferred, Denial, End, Grant, RowReply
from notifier.notification import Identity, Notification, Priority
from notifier.redis.keys import done_key, prefix_of, user_key
from notifier.redis.state import connect_state
from notifier.settings import Settings
from notifier.wire import Message
from tests.support import eventually, free_port

HALF_S = 500_000
RATE_LIMITED = Denial(wait_us=HALF_S, interval_us=HALF_S, reason="rate_limited")
NOW = Grant(granted_at_us=1_764_471_120_123_456, deadline_us=0, interval_us=HALF_S)


@dataclass
class Row:
    notification: Notification
    accepted_us: int
    epoch: str
    expires_us: int = 0


@pytest.fixture
def client(valkey: Valkey) -> Iterator[Redis]:
    with connect_state(valkey.url(), 5.0) as made:
        yield made


@pytest.fixture
def ledger(client: Redis, settings: Settings) -> Ledger:
    return Ledger(client, settings)


def note(user: str = "anna", payload: object = "hello", **options: object) -> Notification:
    return Notification.create(user, payload, **options)  # type: ignore[arg-type]


def accept(ledger: Ledger, n: Notification) -> Message:
    (a,) = ledger.accept([n])
    assert a.status == "queued"
    return Message(n, accepted_us=a.accepted_us, epoch=a.epoch)


def denied(ledger: Ledger, n: Notification) -> Message:
    message = accept(ledger, n)
    assert ledger.deny([message], [RATE_LIMITED])[0].code == "deferred"
    return message


def to_rows(ledger: Ledger) -> list[Row]:
    """Spill as the replay does, but into a list."""
    items = ledger.peek_deferred(100)
    ledger.settle_deferred([item.notification.identity for item in items])
    items.sort(key=lambda item: item.seq)
    return [Row(item.notification, item.accepted_us, item.epoch, item.expires_us) for item in items]


def deliver_rows(ledger: Ledger, rows: Sequence[Row]) -> list[RowReply]:
    return ledger.deliver_digests([[row] for row in rows], [NOW] * len(rows))


def feed(client: Redis, user: str = "anna") -> list[dict[str, object]]:
    entries = client.xrange(user_key("feed", user, "websocket"))
    return [json.loads(b'{"id":"%s",%s' % (entry, fields[b"f"])) for entry, fields in entries]  # type: ignore


def balanced(ledger: Ledger) -> None:
    c = ledger.counts()
    ends = c.delivered + c.digested + c.expired + c.dropped + c.duplicate + c.parked
    assert c.accepted == ends + c.waiting + c.in_flight, c
    assert min(c.waiting, c.parked, c.in_flight) >= 0, c


def age(client: Redis, n: Notification) -> None:
    """Life over: the mark has expired."""
    client.delete(done_key(n.identity))


def test_accept_gives_seq_queue_and_time(ledger: Ledger) -> None:
    first, second = ledger.accept([note(), note()])
    assert (first.status, first.queue, first.seq, second.seq) == ("queued", Priority.NORMAL, 1, 2)
    assert abs(first.accepted_us - ledger.now_us()) < 60_000_000
    assert ledger.accept([note("ben", priority="critical")])[0].queue == Priority.CRITICAL
    balanced(ledger)


def test_deliver_writes_the_frame_and_books_the_end(ledger: Ledger, client: Redis) -> None:
    n = note(payload={"text": 'a"\u2028\x00 1e22', "n": -0.0}, category='li"ke', notification_id="id 1")
    message = accept(ledger, n)
    assert ledger.deliver([message], [NOW])[0].code == "delivered"
    (frame,) = feed(client)
    assert frame["notification_id"] == "id 1"
    assert frame["seq"] == 1
    assert frame["category"] == 'li"ke'
    assert frame["payload"] == json.loads(n.body)
    assert frame["granted_at"] == 1_764_471_120.123456
    assert frame["accepted_at"] == message.accepted_us / 1e6
    assert n.body.encode() in client.xrange(user_key("feed", "anna", "websocket"))[0][1][b"f"]  # type: ignore[index]
    counts = ledger.counts()
    assert (counts.accepted, counts.delivered, counts.in_flight, counts.waiting) == (1, 1, 0, 0)
    prefix = prefix_of("anna")
    for kind in ("ledger", "bodies", "queued:n", "deferred"):
        assert not client.exists(prefix + kind)


def test_every_other_key_has_a_ttl(ledger: Ledger, client: Redis) -> None:
    ledger.deliver([accept(ledger, note())], [NOW])
    denied(ledger, note())
    lasting = {"ledger", "bodies", "deferred", "waiting", "counts", "epoch", "queued"}
    for key in client.scan_iter():
        kind = key.decode().split(":")[3]
        assert client.ttl(key) > 0 or kind in lasting, key


def test_push_carries_the_previous_entry(ledger: Ledger, client: Redis) -> None:
    channel = user_key("feed", "anna", "websocket")
    with client.pubsub() as pubsub:
        pubsub.subscribe(channel)
        eventually(lambda: pubsub.get_message(timeout=0.1))
        ledger.deliver([accept(ledger, note()), accept(ledger, note())], [NOW, NOW])
        pushed = [eventually(lambda: pubsub.get_message(ignore_subscribe_messages=True, timeout=0.1)) for _ in range(2)]
    ids = [entry.decode() for entry, _ in client.xrange(channel)]  # type: ignore
    for push, entry, before in zip(pushed, ids, ["0-0", ids[0]], strict=True):
        got_id, got_before, frame = push["data"].decode().split(" ", 2)
        assert (got_id, got_before, json.loads(frame)["id"]) == (entry, before, entry)


def test_a_repeated_message_is_dropped(ledger: Ledger, client: Redis) -> None:
    message = accept(ledger, note())
    codes = [reply.code for reply in ledger.deliver([message, message], [NOW, NOW])]
    assert codes == ["delivered", "gone"]
    assert ledger.deny([message], [RATE_LIMITED])[0].code == "gone"
    assert len(feed(client)) == 1
    balanced(ledger)


def test_a_repeated_id_is_a_duplicate_while_it_waits_and_after_its_end(ledger: Ledger) -> None:
    n = note(notification_id="order-7")
    message = accept(ledger, n)
    assert ledger.accept([n])[0].status == "duplicate"
    ledger.deliver([message], [NOW])
    assert ledger.accept([n])[0].status == "duplicate"
    assert ledger.accept([replace(n, user_id="ben"), replace(n, channel="console")])[1].status == "queued"
    assert ledger.counts().duplicate == 2
    balanced(ledger)


def test_a_stale_copy_is_dropped_once_its_mark_is_gone(ledger: Ledger, client: Redis) -> None:
    n = note()
    old = replace(accept(ledger, n), accepted_us=ledger.now_us() - 601_000_000)
    ledger.deliver([old], [NOW])
    age(client, n)
    assert ledger.deliver([old], [NOW])[0].code == "gone"
    assert len(feed(client)) == 1


def test_what_the_ledger_lost_is_accepted_by_the_worker(ledger: Ledger, client: Redis) -> None:
    message = accept(ledger, note())
    client.flushall()
    assert ledger.deliver([message], [NOW])[0].code == "delivered"
    assert ledger.counts().accepted == 1
    balanced(ledger)


def test_late_life_what_was_sent_without_the_ledger_lives_a_day(ledger: Ledger, client: Redis) -> None:
    n = note()
    sent = Message(n, accepted_us=ledger.now_us() - 3_600_000_000, unledgered=True)
    assert ledger.deliver([sent], [NOW])[0].code == "delivered"
    assert client.pttl(done_key(n.identity)) > 86_400_000  # type: ignore[operator]
    assert ledger.deliver([sent], [NOW])[0].code == "gone"


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


def test_arrivals_beyond_the_limit_go_to_bulk(ledger: Ledger) -> None:
    queues = [a.queue for a in ledger.accept([note() for _ in range(30)])]
    assert queues[:10] == [Priority.NORMAL] * 10
    assert queues.count(Priority.BULK) >= 19
    assert ledger.accept([note("ben")])[0].queue == Priority.NORMAL


def test_a_grant_past_its_deadline_delivers_nothing(ledger: Ledger, client: Redis) -> None:
    message = accept(ledger, note())
    late = Grant(granted_at_us=1, deadline_us=ledger.now_us() - 1)
    assert ledger.deliver([message], [late])[0].code == "late"
    assert not feed(client)
    assert ledger.deliver([message], [NOW])[0].code == "delivered"


@pytest.mark.parametrize("how", ["deliver", "deny", "begin", "row"])
def test_expired_is_never_delivered(ledger: Ledger, client: Redis, how: str) -> None:
    n = note(ttl=0.001)
    message = accept(ledger, n)
    eventually(lambda: ledger.now_us() > message.accepted_us + 1_000)
    if how == "deliver":
        assert ledger.deliver([message], [NOW])[0].code == "expired"
    elif how == "deny":
        assert ledger.deny([message], [RATE_LIMITED])[0].code == "expired"
    elif how == "begin":
        assert ledger.begin([message])[0].code == "expired"
    else:
        row = Row(n, message.accepted_us, message.epoch, message.accepted_us + 1_000)
        assert deliver_rows(ledger, [row])[0].action == "ended"
    assert not feed(client)
    assert ledger.counts().expired == 1
    balanced(ledger)


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


def test_a_claim_keeps_other_copies_out_until_its_lease_is_over(ledger: Ledger) -> None:
    message = accept(ledger, note(channel="console"))
    assert ledger.begin([message], lease_us=60_000_000)[0].code == "go"
    assert ledger.begin([message], lease_us=60_000_000)[0].code == "gone"
    assert not ledger.overdue(Priority.NORMAL, ledger.now_us() + 1_000_000)
    failed = Denial(1_000, 0, "delivery_failed", attempts=1, error="503")
    assert ledger.deny([message], [failed])[0].code == "deferred"
    (item,) = ledger.peek_deferred(10)
    assert (item.attempts, item.error, item.reason) == (1, "503", "delivery_failed")
    assert ledger.accept([note(channel="console")])[0].status == "queued"  # a failed one holds nobody back


def test_overdue_finds_what_was_published_before_and_only_once(ledger: Ledger) -> None:
    lost, settled = accept(ledger, note()), accept(ledger, note("ben"))
    ledger.deliver([settled], [NOW])
    before_us = ledger.now_us() + 1
    eventually(lambda: ledger.now_us() > before_us)
    (found,) = ledger.overdue(Priority.NORMAL, before_us)
    assert found == replace(lost, again=True)
    assert not ledger.overdue(Priority.NORMAL, before_us)
    assert ledger.counts().republished == 1


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


def test_unavailable_says_whether_it_may_have_run(settings: Settings, fresh_valkey: object) -> None:
    nobody = Ledger(connect_state(f"redis://127.0.0.1:{free_port()}/0", 0.2), settings)
    with pytest.raises(StateUnavailable) as refused:
        nobody.accept([note()])
    assert not refused.value.ambiguous
    server: Valkey = fresh_valkey()  # type: ignore[operator]
    frozen = Ledger(connect_state(server.url(), 0.2), settings)
    frozen.now_us()
    server.freeze()
    try:
        with pytest.raises(StateUnavailable) as silent:
            frozen.accept([note()])
    finally:
        server.thaw()
    assert silent.value.ambiguous


def test_a_full_redis_accepts_nothing_but_drains(fresh_valkey: object, settings: Settings) -> None:
    server: Valkey = fresh_valkey()  # type: ignore[operator]
    client = connect_state(server.url(), 2.0)
    ledger = Ledger(client, settings)
    message = accept(ledger, note())
    client.config_set("maxmemory", "1")
    with pytest.raises(StateUnavailable, match="OutOfMemory") as full:
        ledger.accept([note()])
    assert not full.value.ambiguous
    assert ledger.deliver([message], [NOW])[0].code == "delivered"
    client.close()


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


def test_the_same_recipient_twice_in_a_batch_is_a_duplicate(ledger: Ledger) -> None:
    n = note()
    assert [a.status for a in ledger.accept([n, n])] == ["queued", "duplicate"]
    balanced(ledger)


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
