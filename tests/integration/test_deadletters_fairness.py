"""A backlog of one user beside others, and replayers that are killed."""

from __future__ import annotations

import multiprocessing
import random
import time

import pytest
from sqlalchemy import text

from tests.deadletters import MakeBench

# Rows that outlived their Redis: the ledger accepts each when it is first asked, so no Redis has to be filled before.
BACKLOG = """
    INSERT INTO dead_letters (user_id, channel, notification_id, seq, epoch, starts, category, body, priority,
        collapse_key, reason, state, attempts, retry_at, accepted_at)
    SELECT CASE WHEN n <= :noisy THEN 'noisy' ELSE 'quiet-' || n END, 'websocket', 'id-' || n, n, 'another', 0,
        'default', '[1]', 'normal', '', 'rate_limited', 'waiting', 0, now() - (1000000 - n) * interval '1 ms', now()
    FROM generate_series(1, :noisy + 100) AS n
"""


@pytest.mark.slow
def test_fifty_thousand_rows_of_one_user_beside_a_hundred_of_others(make_bench: MakeBench) -> None:
    bench = make_bench(user_limit="20/s burst 40", feed_length=10_000)
    bench.store.run(lambda c: c.execute(text(BACKLOG), {"noisy": 50_000}), scan=True)
    started_us = bench.ledger.now_us()
    claimed = periods = 0

    def quiet_left() -> int:
        ((count,),) = bench.sql("SELECT count(*) FROM dead_letters WHERE user_id <> 'noisy'")
        return int(count)

    while quiet_left():
        claimed += bench.replay.run().claimed
        periods += 1
        assert periods <= 2
    until_s = time.monotonic() + 60
    while (delivered := len(bench.feed("noisy"))) < 150:  # the burst, and some more at the limit's pace
        assert time.monotonic() < until_s
        claimed += bench.replay.run().claimed
    took_s = (bench.ledger.now_us() - started_us) / 1e6
    assert delivered <= 40 + 20 * took_s + 1
    assert claimed <= 100 + 1_000 + 1.5 * delivered
    ((rows, times, span_s),) = bench.sql(
        "SELECT count(*), count(DISTINCT retry_at), extract(epoch FROM max(retry_at) - min(retry_at)) FROM dead_letters"
    )
    assert rows == 50_000 - delivered
    assert times > 0.99 * rows  # each has its own place in time,
    assert float(span_s) == pytest.approx(rows / 20, rel=0.05)  # at his own pace
    assert bench.balanced()


@pytest.mark.slow
def test_replayers_killed_at_random_lose_and_repeat_nothing(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifier.deadletters.claiming.CLAIM_S", 1)
    monkeypatch.setattr("notifier.deadletters.queries.WINDOW", 300)
    bench = make_bench(user_limit="off", feed_length=10_000)
    for user in range(20):
        bench.deny(f"user-{user}", 60)
        bench.deny(f"user-{user}", 40, collapse_key="k")
    context = multiprocessing.get_context("fork")

    def replayer(settings: object) -> None:
        mine = make_bench(user_limit="off", feed_length=10_000)
        while True:
            mine.replay.run()

    for _ in range(25):
        process = context.Process(target=replayer, args=(None,), daemon=True)
        process.start()
        process.join(random.uniform(0.05, 0.6))
        process.kill()
        process.join()
    deadline_s = time.monotonic() + 90
    while bench.store.counts().waiting or bench.ledger.counts().deferred:
        assert time.monotonic() < deadline_s
        bench.replay.run()
        time.sleep(0.05)
    counts = bench.ledger.counts()
    assert bench.balanced()
    assert counts.accepted == 2_000
    assert counts.delivered + counts.digested + counts.parked == 2_000
    for user in range(20):
        frames = bench.feed(f"user-{user}")
        alone = [frame["seq"] for frame in frames if frame["seq"] <= 60]
        assert alone == sorted(set(alone))
        told = [name for frame in frames for name in frame.get("digest", {}).get("ids", [frame["notification_id"]])]
        assert len(told) == len(set(told))
    assert counts.parked == 0
