"""Where prompts go that a replica holds the beginning of; the router is the real one."""

from dataclasses import replace

import pytest

from router.config import RouterConfig
from router.core import RouterCore
from router.errors import Busy
from router.policy import PlacementPolicy
from router.prefix_affinity import PrefixAffinity
from router.prefix_match import Fate
from router.ticket import Ticket
from tests.router.fake_cluster import FakeReplica, make_core, ticket, where

CHAT = tuple(range(100, 116))  # sixteen blocks


def fleet(names: str = "abc", **kinds: int) -> dict[str, FakeReplica]:
    return {name: FakeReplica(name, total=1_000, **kinds) for name in names}


def core_of(
    replicas: dict[str, FakeReplica],
    placement: PlacementPolicy | None = None,
    config: RouterConfig | None = None,
) -> RouterCore:
    placement = placement or PrefixAffinity(slack=0.1, worth=1.0)
    return make_core(*replicas.values(), placement=placement, config=config)


def ask(
    core: RouterCore, name: str, prefix: tuple[int, ...], blocks: int = 20, **more: object
) -> str | None:
    """Acquire a ticket; returns where it went."""
    asked: Ticket = replace(ticket(name, blocks), prefix=prefix, **more)  # type: ignore[arg-type]
    return where(core.acquire(asked)).get(name)


def holds(core: RouterCore, replica: FakeReplica, *keys: int) -> None:
    """The replica reports that it has these cached, and not in use."""
    replica.store(keys)
    core.report(replica.report())


def test_a_prompt_goes_where_most_of_it_is_held() -> None:
    replicas = fleet()
    core = core_of(replicas)
    holds(core, replicas["b"], *CHAT[:4])
    holds(core, replicas["c"], *CHAT[:9])
    assert ask(core, "x", CHAT) == "c"
    assert ask(core, "new", (1, 2, 3)) == "a"  # most free blocks
    assert core._ledger.fates == {Fate.HERE: 1, Fate.NOWHERE: 1}


def test_not_if_that_replica_is_behind_by_more_than_is_saved() -> None:
    replicas = fleet()
    core = core_of(replicas)
    holds(core, replicas["c"], *CHAT)
    replicas["c"].running["other"] = 16
    core.report(replicas["c"].report())
    assert ask(core, "x", CHAT) == "c"
    core.release("x")
    replicas["c"].running["other"] = 17
    core.report(replicas["c"].report())
    assert ask(core, "x", CHAT) in ("a", "b")
    assert core._ledger.fates == {Fate.HERE: 1, Fate.ELSEWHERE: 1}


def test_nor_by_more_than_the_slack_whatever_is_saved() -> None:
    replicas = fleet()
    core = core_of(replicas, PrefixAffinity(slack=0.1, worth=100.0))
    holds(core, replicas["c"], *CHAT)
    for behind, goes in ((100, {"c"}), (101, {"a", "b"})):
        replicas["c"].running["other"] = behind
        core.report(replicas["c"].report())
        assert ask(core, "x", CHAT) in goes
        core.release("x")


def test_what_the_freest_holds_too_is_not_saved() -> None:
    replicas = fleet("ab")
    core = core_of(replicas)
    holds(core, replicas["a"], *CHAT[:15])
    holds(core, replicas["b"], *CHAT)
    replicas["b"].running["other"] = 2
    core.report(replicas["b"].report())
    assert ask(core, "x", CHAT) == "a"  # one block less to compute is not worth two


def test_blocks_that_are_in_use_there_do_not_count_as_taken() -> None:
    """Without this, who runs a long prompt would be too far behind for the next of its kind."""
    replicas = fleet("ab")
    core = core_of(replicas)
    first = ask(core, "x", CHAT, blocks=18)
    assert first is not None
    replicas[first].submit("x", 18, CHAT)
    replicas[first].step()
    core.report(replicas[first].report())
    assert ask(core, "y", CHAT, blocks=18) == first


def test_a_burst_of_a_new_prompt_gathers_but_leaves_nobody_idle() -> None:
    """Before any report: what is on its way counts as held, and as shared."""
    core = core_of(fleet("abcd"))
    placed = [ask(core, str(i), CHAT, blocks=20) for i in range(20)]
    # Each brings 4 blocks of its own, and 16 are saved: four go behind the first.
    assert placed[:5] == [placed[0]] * 5
    counts = [placed.count(name) for name in "abcd"]
    assert counts == [5, 5, 5, 5]


def test_a_beginning_that_everybody_sends_draws_nobody_to_a_busy_replica() -> None:
    core = core_of(fleet("abcd"))
    placed = [ask(core, str(i), CHAT[:1], blocks=20) for i in range(8)]
    assert [placed.count(name) for name in "abcd"] == [2, 2, 2, 2]


def test_what_is_expected_goes_with_its_ticket() -> None:
    replicas = fleet()
    core = core_of(replicas)
    home = ask(core, "x", CHAT)
    core.release("x")
    assert ask(core, "y", CHAT) != home  # nothing of it was computed: least recently used
    core.release("y")
    assert len(core._ledger._prefixes) == 0


def test_nor_is_anything_expected_of_what_a_report_names_ended() -> None:
    replicas = fleet()
    core = core_of(replicas)
    home = replicas[str(ask(core, "x", CHAT))]
    home.submit("x", 20, CHAT)
    home.end("x")  # before a step computed anything of it
    core.report(home.report())
    assert len(core._ledger._prefixes) == 0


def test_what_was_computed_stays_when_the_ticket_goes() -> None:
    replicas = fleet()
    core = core_of(replicas)
    home = ask(core, "x", CHAT)
    assert home is not None
    replica = replicas[home]
    replica.submit("x", 20, CHAT)
    replica.step()
    replica.end("x")
    core.report(replica.report())
    core.release("x", finished=True)
    for name in replicas:
        replicas[name].running["other"] = 1
        if name != home:
            core.report(replicas[name].report())
    replica.running["other"] = 3
    core.report(replica.report())
    assert ask(core, "y", CHAT) == home


@pytest.mark.parametrize("told_by", ["report", "release"])
def test_a_request_that_ran_teaches_what_no_report_will_tell_again(told_by: str) -> None:
    replicas = fleet("a")
    core = core_of(replicas)
    a, probe = replicas["a"], replace(ticket("x"), prefix=CHAT)
    a.cached |= dict.fromkeys(CHAT)  # the router has forgotten it
    assert ask(core, "x", CHAT) == "a"
    a.submit("x", 20)
    a.step()
    core.report(a.report())
    a.end("x")
    if told_by == "report":
        core.report(a.report())
    core.release("x", finished=True)
    assert core._ledger.held("a", probe) == 16
    core.report(a.report(full=True))
    assert core._ledger.held("a", probe) == 16
    a.evict(CHAT)
    core.report(a.report())
    assert core._ledger.held("a", probe) == 0


def test_nothing_is_learned_that_the_report_of_the_end_takes_back() -> None:
    replicas = fleet("a")
    core = core_of(replicas)
    a = replicas["a"]
    assert ask(core, "x", CHAT) == "a"
    a.submit("x", 20, CHAT)
    a.step()
    core.report(a.report())
    a.end("x")
    a.evict(CHAT)
    core.report(a.report())
    assert len(core._ledger._prefixes) == 0


def test_a_call_that_does_not_fit_was_never_placed() -> None:
    """Fault: every try of a client that is refused counts as requests that were placed well."""
    replicas = fleet("a", max_seqs=2)
    core = core_of(replicas, config=RouterConfig(lookahead=0, max_queued=0))
    holds(core, replicas["a"], *CHAT)
    assert ask(core, "first", CHAT) == "a"
    for i in range(5):
        both = [replace(ticket(f"{i}.{k}", 20), prefix=CHAT, call=str(i)) for k in range(2)]
        with pytest.raises(Busy):
            core.acquire_all(both)
    gauges = core.gauges()
    assert gauges.placed_total == 1
    assert dict(gauges.by_prefix) == {"here": 1, "elsewhere": 0, "nowhere": 0}


def test_one_that_comes_back_counts_once() -> None:
    """And what was counted is not taken back, which would look like a restart of the router."""
    replicas = fleet("ab")
    core = core_of(replicas)
    home = ask(core, "x", CHAT)
    assert where(core.bounced("x"))["x"] != home
    assert dict(core.gauges().by_prefix) == {"here": 0, "elsewhere": 0, "nowhere": 1}


def test_what_was_evicted_is_forgotten() -> None:
    replicas = fleet()
    core = core_of(replicas)
    holds(core, replicas["c"], *CHAT)
    replicas["c"].evict(CHAT[4:])
    core.report(replicas["c"].report())
    holds(core, replicas["b"], *CHAT[:5])
    assert ask(core, "x", CHAT) == "b"


def test_news_that_come_late_or_twice_are_not_news() -> None:
    replicas = fleet()
    core = core_of(replicas)
    c = replicas["c"]
    c.store(CHAT)
    old = c.report()
    core.report(old)
    c.evict(CHAT)
    core.report(c.report())
    core.report(old)
    assert core._ledger.held("c", replace(ticket("x"), prefix=CHAT)) == 0


def test_a_lost_report_leaves_nothing_for_ever() -> None:
    replicas = fleet()
    core = core_of(replicas)
    c, probe = replicas["c"], replace(ticket("x"), prefix=CHAT)
    holds(core, c, *CHAT)
    c.evict(CHAT)
    c.store((1, 2))
    c.report()  # never comes
    core.report(c.report())
    assert core._ledger.held("c", probe) == 16
    assert core.wants_full_report("c")
    core.report(c.report(full=True))
    assert core._ledger.held("c", probe) == 0
    assert core._ledger.held("c", replace(probe, prefix=(1, 2))) == 2


def test_a_new_router_knows_again_what_is_held() -> None:
    replicas = fleet()
    holds(core_of(replicas), replicas["c"], *CHAT)
    core = make_core(placement=PrefixAffinity())
    for replica in replicas.values():
        core.report(replica.report(full=True))
    assert ask(core, "x", CHAT) == "c"


def test_a_replica_that_is_lost_holds_nothing() -> None:
    replicas = fleet()
    core = core_of(replicas)
    holds(core, replicas["c"], *CHAT)
    assert ask(core, "x", CHAT) == "c"
    core.lost("c")
    assert len(core._ledger._prefixes) == 0
    assert ask(core, "x1", CHAT, again=True) in ("a", "b")


@pytest.mark.parametrize("why", ["closed", "leaving", "full", "suspect"])
def test_who_would_not_get_it_anyway_does_not_get_it_for_its_prefix(why: str) -> None:
    replicas = fleet("ab", max_seqs=1) if why == "full" else fleet("ab")
    core = core_of(replicas, config=RouterConfig(lookahead=2))
    a, b = replicas["a"], replicas["b"]
    holds(core, b, *CHAT)
    if why == "closed":
        assert ask(core, "other", CHAT) == "b"
        core.bounced("other")
        core.release("other")
    elif why == "full":  # there it would wait, as lookahead
        b.running["other"] = 0
        core.report(b.report())
    elif why == "leaving":
        b.leaving = True
        core.report(b.report())
    else:
        core.unreachable("b")
    assert ask(core, "x", CHAT) == "a"
    # With nobody better it is a question of the prefix again, or of who is there at all.
    core.lost("a")
    assert ask(core, "y", CHAT) == ("b" if why in ("full", "suspect") else None)
    core.report(a.report(full=True))


def test_among_those_where_it_would_wait_the_prefix_decides() -> None:
    replicas = fleet("ab", max_seqs=1)
    core = core_of(replicas, config=RouterConfig(lookahead=2))
    for name, held in (("a", 5), ("b", 10)):
        replicas[name].running["other"] = held
        holds(core, replicas[name])
    holds(core, replicas["b"], *CHAT)
    assert ask(core, "x", CHAT) == "b"


def test_one_that_is_too_small_or_of_another_kind_is_not_considered() -> None:
    small, other, good = FakeReplica("small", total=30), FakeReplica("other"), FakeReplica("good")
    other.kind, small.kind, good.kind = "k2", "k1", "k1"
    core = make_core(small, other, good, placement=PrefixAffinity())
    for replica in (small, other):
        holds(core, replica, *CHAT)
    assert ask(core, "x", CHAT, blocks_max=40, kind="k1") == "good"


def test_without_a_prefix_it_is_the_rule_of_most_free_blocks() -> None:
    core = core_of(fleet("abc"))
    assert [ask(core, str(i), (), blocks=10) for i in range(3)] == ["a", "b", "c"]
    assert not core._ledger.fates


@pytest.mark.parametrize(("slack", "worth"), [(-0.1, 1.0), (0.1, -1.0), (float("nan"), 1.0)])
def test_limits_are_not_negative(slack: float, worth: float) -> None:
    with pytest.raises(ValueError, match="is negative"):
        PrefixAffinity(slack, worth)
