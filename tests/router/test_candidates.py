from router.account import Account
from router.candidates import Candidates
from tests.router.fake_cluster import FakeReplica, ticket


def test_the_best_is_where_it_fits_then_where_it_would_wait_then_nobody() -> None:
    accounts: dict[str, Account] = {}
    candidates = Candidates(accounts)
    for joined, (name, total, seats) in enumerate((("a", 50, 8), ("b", 90, 8), ("c", 99, 0))):
        report = FakeReplica(name, total=total, max_seqs=seats).report()
        accounts[name] = Account(report, lookahead=1, joined=joined, now=0.0)
        candidates.put(accounts[name])
    assert candidates.best(ticket("x", 50)) == "b"
    assert candidates.best(ticket("x", 95)) == "c"  # it has no seat: there it would wait
    candidates.discard("b")
    assert candidates.best(ticket("x", 50)) == "a"
    accounts["a"].closed = True
    candidates.put(accounts["a"])
    assert candidates.best(ticket("x", 50)) == "c"
    candidates.discard("c")
    assert candidates.best(ticket("x", 1)) is None
