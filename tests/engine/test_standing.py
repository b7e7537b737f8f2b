"""What an engine says of its requests and their blocks at once, whenever somebody asks."""

import pytest

from engine.batch import Batch
from engine.live import Live
from engine.request import SamplingParams
from engine.submission import Standing, StepReport, Submission
from tests.engine.rig import Bench

pytestmark = pytest.mark.usefixtures("each_loop")


class Watcher:
    """Looks whenever another thread could: after each hold of the lock, and when text is made."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Standing] = []
        self._engine, self._lock = bench.engine, bench.engine._changed
        self._looking = False
        tell = Live.tell

        def watched(live: Live, token: int) -> str:
            self.look()
            text = tell(live, token)
            self.look()
            return text

        monkeypatch.setattr(Live, "tell", watched)
        monkeypatch.setattr(bench.engine, "_changed", self)
        monkeypatch.setattr(bench.engine._loop, "_lock", self)

    def look(self) -> None:
        if not self._looking:
            self._looking = True
            self.seen.append(self._engine.standing())
            self._looking = False

    def notify(self) -> None:
        self._lock.notify()

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)
        self.look()


def test_whose_blocks_are_free_is_no_more_among_those_that_hold_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault: blocks are free in a report that does not say whose they were, and credited again."""
    bench = Bench(num_blocks=20, debug=True, clock=lambda: 5)
    bench.submit("whole", (8, 9), max_tokens=9)
    bench.run()
    fourth, text = bench.inbox.tokens("whole")[3], bench.inbox.text("whole").split()[2]
    watcher = Watcher(bench, monkeypatch)

    def fail(batch: Batch) -> None:
        if any(table[0] == broken for table in batch.tables if len(table)):
            raise RuntimeError("a block cannot be read")

    bench.submit("by length", max_tokens=2)
    bench.submit("by string", (8, 9), max_tokens=9, stop=(text,))
    bench.submit("by token", (8, 9), max_tokens=9, stop_token_ids=(fourth,))
    bench.submit("by error", tuple(range(3, 20)), max_tokens=9)
    bench.submit("by abort", max_tokens=9)
    bench.engine.submit(Submission("too late", (3, 4), SamplingParams(), start_by=4))
    for _ in range(2):
        bench.engine.step()
    id = bench.engine._lives.id_of("by error")
    assert id is not None
    broken = bench.blocks.block_table(id)[0]
    bench.runner.before = fail
    bench.engine.abort("by abort")
    bench.run()
    assert {d.key: d.error for d in bench.inbox.deltas if d.error} == {
        "by error": "RuntimeError: a block cannot be read",
        "too late": "expired",
    }
    for one in watcher.seen:
        stats = one.stats
        assert len(one.keys) == stats.running + stats.waiting
        assert bool(one.keys) or stats.free_blocks == stats.total_blocks
    assert {frozenset(one.keys) for one in watcher.seen} >= {frozenset(), frozenset({"by length"})}


def test_who_has_ended_and_has_not_been_told_stands_no_more() -> None:
    bench = Bench(eos=-1)
    told: list[tuple[Standing, tuple[str, ...]]] = []
    on_step = bench.engine._loop.on_step

    def hear(report: StepReport) -> None:
        told.append((bench.engine.standing(), tuple(delta.key for delta in report.deltas)))
        on_step(report)

    bench.engine._loop.on_step = hear
    bench.submit("short", max_tokens=1)
    bench.submit("long", max_tokens=2)
    bench.run()
    assert [keys for _, keys in told] == [("short", "long"), ("long",)]
    assert [one.keys for one, _ in told] == [frozenset({"long"}), frozenset()]
