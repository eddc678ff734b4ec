"""How the handover benchmark judges its figures, answers the job and ends; no torch and no job."""

import argparse
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
import handover_bars
import handover_bench
import handover_link
import handover_rebounds
import handover_storm
from handover_bars import figures

from lull._protocol import Ack, Refused, Request, decode, encode


def test_p50_is_the_median_and_p99_the_nearest_rank() -> None:
    assert figures([]) == {"n": 0}
    assert figures([3.0, 1.0]) == {"n": 2, "mean_ms": 2.0, "p50_ms": 2.0, "p99_ms": 3.0, "max_ms": 3.0}
    many = figures([float(i) for i in range(1, 301)])
    assert (many["p50_ms"], many["p99_ms"], many["max_ms"]) == (150.5, 297.0, 300.0)
    assert figures([float(i) for i in range(1, 101)])["p99_ms"] == 99.0


def method(ms: list[float], lost: float, rebounds: int = 0) -> dict[str, dict[str, Any]]:
    """A method's summaries, alike for both sizes."""
    return {
        size: {**figures(ms), "work_lost_per_order_s": lost, "rebounds": rebounds, "not_freed": 0}
        for size in handover_bars.AIMS_MS
    }


def verdicts(slots: dict[str, dict[str, Any]], discard: dict[str, dict[str, Any]]) -> dict[str, bool | None]:
    """Bars by name."""
    return {bar.name: bar.met for bar in handover_bars.judge({"slots": slots, "next-saved": discard})}


def test_bars_are_judged_per_size() -> None:
    good = verdicts(method([0.5, 1.0], 0.009), method([5.0, 5.0], 0.1))
    assert len(good) == 12
    assert all(good.values())
    bad = verdicts(method([6.0, 9.0], 0.02, rebounds=1), method([30.0, 40.0], 0.1))
    assert not any(bad.values())


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    bars = handover_bars.judge({"slots": method([], 0), "next-saved": method([], 0)})
    assert {bar.met for bar in bars} == {None}
    assert bars[0].line() == "n/a     16MiB: mean against next-saved: not measured (want ≥ 5 × faster)"
    free = verdicts(method([1.0], 0.0), method([9.0], 0.0))
    assert free["16MiB: work lost per order against next-saved"] is None  # nothing was lost that could be saved


def test_the_table_has_every_method_and_bar() -> None:
    cells = {m: {"16MiB": handover_bench.Cell().summary()} for m in handover_bench.METHODS}
    text = handover_bench.table(cells, [handover_bars.Bar("a bar", "≤ 1 ms", "2 ms", False)])
    assert all(m in text for m in handover_bench.METHODS)
    assert "MISSED  a bar: 2 ms (want ≤ 1 ms)" in text


def connected() -> tuple[handover_link.Job, socket.socket]:
    """A Job whose process is this test."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    job = handover_link.Job.__new__(handover_link.Job)
    job.conn, job.floor, job.refused = ours, 7, 0
    job._rest, job._inbox, job._pinged = b"", [], time.monotonic()
    return job, theirs


def test_a_request_for_a_higher_floor_is_refused_at_once() -> None:
    job, theirs = connected()
    theirs.sendall(encode(Request(99)) + encode(Ack(epoch=5, held=3, waited_us=0, freed_us=0, how="cached")))
    assert [ack.epoch for ack in job.acks()] == [5]
    answer = decode(theirs.recv(1 << 16).strip())
    assert isinstance(answer, Refused)
    assert answer.floor == 7
    assert job.refused == 1
    assert job.acks() == []


def options(**fields: Any) -> argparse.Namespace:
    """A command line."""
    given = {"orders": 300, "microbatch_orders": 0, "batch_orders": 0, "max_seconds": 0.0, "seed": 1, "chunk": 5}
    return argparse.Namespace(**{**given, "budget_mib": 320, **fields})


def test_the_slow_methods_may_have_fewer_orders() -> None:
    assert set(handover_bench.wanted(options()).values()) == {300}
    want = handover_bench.wanted(options(microbatch_orders=60, batch_orders=20))
    assert want == {"slots": 300, "next-saved": 300, "microbatch": 60, "batch": 20}


def test_the_run_ends_when_its_time_is_over_and_when_all_is_measured() -> None:
    job = cast("handover_link.Job", None)  # neither run orders anything
    outside = handover_bench.Outside()
    empty = {("slots", 16): handover_bench.Cell()}
    assert not handover_bench.run_all(job, empty, options(max_seconds=5), time.time() - 6, outside)
    full = handover_bench.Cell()
    full.ms, full.orders = [1.0] * 300, 300
    assert handover_bench.run_all(job, {("slots", 16): full}, options(), time.time(), outside)


def test_what_is_outside_the_arena_is_a_high_reading_of_the_last_ones() -> None:
    outside = handover_bench.Outside(last=10)
    for low in range(10):  # some readings meet memory that is handed out and not yet touched
        seen = outside.read({"bytes": 100 - (low == 3) * 40, "resident": 50})
    assert seen == 50
    for _ in range(10):
        seen = outside.read({"bytes": 70, "resident": 50})
    assert seen == 20


def test_sizes_without_an_aim_are_judged_by_the_rest() -> None:
    small = {"4MiB": {**figures([0.5]), "work_lost_per_order_s": 0.001, "rebounds": 0, "not_freed": 0}}
    slow = {"4MiB": {**figures([9.0]), "work_lost_per_order_s": 0.1, "rebounds": 0, "not_freed": 0}}
    assert verdicts(small, slow) == dict.fromkeys(
        (
            "4MiB: mean against next-saved",
            "4MiB: P99 against next-saved",
            "4MiB: work lost per order against next-saved",
            "4MiB: rebounds above the ceiling",
        ),
        True,
    )


class StormyJob:
    """Acks each order at once, holds what it acked, and every third time more than that."""

    def __init__(self) -> None:
        self.epoch, self.bytes, self.held, self._acks = 0, 0, 0, list[Ack]()
        self.within: list[int] = []

    def tell(self, line: str) -> dict[str, Any]:
        return {"baseline": 1000, "floor": 500, "resident": 0, "lost_s": self.epoch * 0.5, "recompute_s": 0.0}

    def order(self, bytes: int, within_us: int = 0) -> int:
        self.epoch, self.bytes = self.epoch + 1, bytes
        self.within.append(within_us)
        self._acks = [Ack(self.epoch, bytes, 0, 0, "drop")]
        return self.epoch

    def acks(self) -> list[Ack]:
        found, self._acks = self._acks, []
        return found

    def rest(self, seconds: float) -> None: ...

    def close(self) -> None: ...

    def ran_s(self) -> float:
        return self.epoch * 0.25

    def rss(self) -> int:
        return 1500 + self.bytes + (7 if self.epoch % 3 == 0 else 0)


def test_a_storm_counts_each_order_that_was_followed_by_more_than_its_ack() -> None:
    found = handover_storm.run_storm(cast("handover_link.Job", StormyJob()), "slots", 9, 64 << 20, seed=1)
    assert (found["orders"], found["how"], found["without_ack"]) == (9, {"drop": 9}, 0)
    assert (found["rebounds"], found["worst_rebound_bytes"]) == (3, 7), "of epochs 2, 4 and so on to 18: 6, 12 and 18"
    assert found["work_lost_s"] == 9.0, "eighteen orders, each grant included, of half a second"
    bars = handover_bars.judge_storm({"slots": found, "next-saved": {**found, "work_lost_per_order_s": 20.0}})
    assert [bar.met for bar in bars] == [False, True]
    assert "3 rebounds above the ceiling (worst 7 B" in handover_storm.line("slots", found)
    assert handover_bars.judge_storm({}) == []


def test_a_storm_tells_the_work_that_orders_with_a_deadline_lost_from_that_of_others() -> None:
    job = StormyJob()
    found = handover_storm.run_storm(cast("handover_link.Job", job), "slots", 60, 64 << 20, seed=1)
    shrinks = job.within[1::2]  # a grant comes first, and after each
    assert not any(shrinks[:50])
    assert all(shrinks[50:])
    assert found["work_lost_per_order_without_deadline_s"] == found["work_lost_per_order_with_deadline_s"] == 1.0
    assert found["watched_s"] > 0


def test_counting_rebounds_reports_no_time_of_an_ack_and_fails_where_a_bar_is_missed(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    jobs: list[tuple[str, ...]] = []

    def stormy(python: str, script: list[str], *rest: Any) -> StormyJob:
        jobs.append(tuple(script[1:]))
        return StormyJob()

    monkeypatch.setattr(handover_rebounds, "Job", stormy)
    out = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["x", "--orders", "30", "--shapes", "small,large", "--out", str(out)])
    try:
        handover_rebounds.main()
    except SystemExit as end:
        assert end.code == 1  # noqa: PT017  # this file needs no pytest
    else:
        raise AssertionError("ten rebounds are none")
    assert jobs == [("64", "128", "2"), ("64", "512", "6")]
    found = json.loads(out.read_text())["shapes"]["large"]
    assert (found["slots"]["orders"], found["next-saved"]["orders"]) == (30, 3)
    assert found["slots"]["ack"] == {"n": 30}
    said = capsys.readouterr().out
    assert "30 orders (30 drop; 0 without an ack): 10 rebounds above the ceiling in" in said
    assert "MISSED  30 small orders: rebounds above the ceiling: 10 in" in said


def test_shapes_and_sizes_of_the_command_line_are_checked() -> None:
    assert handover_bench.shape_names("small,large") == ["small", "large"]
    assert handover_bench._sizes("4,16") == [4, 16]
    for call, text, said in (
        (handover_bench.shape_names, "huge", "got 'huge', want some of small, medium, large"),
        (handover_bench._sizes, "16,x", "got '16,x', want numbers of MiB above 0"),
    ):
        try:
            call(text)
        except argparse.ArgumentTypeError as error:
            assert said in str(error)  # noqa: PT017  # this file needs no pytest
        else:
            raise AssertionError(text)
