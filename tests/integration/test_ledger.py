"""The protocol's scripts about messages, on a real Valkey. Test names follow the rules of the protocol."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from redis import Redis

from notifier.embedded.valkey import Valkey
from notifier.errors import StateUnavailable
from notifier.ledger import Ledger
from notifier.licence import Denial, Grant
from notifier.notification import Priority
from notifier.redis.keys import done_key, prefix_of, user_key
from notifier.redis.state import connect_state
from notifier.settings import Settings
from notifier.wire import Message
from tests.ledger import (
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
)
from tests.support import eventually, free_port


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


def test_the_same_recipient_twice_in_a_batch_is_a_duplicate(ledger: Ledger) -> None:
    n = note()
    assert [a.status for a in ledger.accept([n, n])] == ["queued", "duplicate"]
    balanced(ledger)
