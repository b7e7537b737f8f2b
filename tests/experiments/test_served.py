"""Whose CPU time counts as the way of a token."""

from experiments.bench.served import engine_threads, used_by_parts

BEFORE = {
    ("Gateway", 1, 1): 10,
    ("Replica", 2, 2): 900,  # starting cost its main thread more than the engine has used
    ("Replica", 2, 3): 50,
    ("Replica", 4, 5): 70,
}
AFTER = {
    ("Gateway", 1, 1): 14,
    ("Gateway", 1, 6): 3,  # began meanwhile
    ("Replica", 2, 2): 905,
    ("Replica", 2, 3): 90,
    ("Replica", 4, 4): 2,
    ("Replica", 4, 5): 170,
}


def test_the_busiest_thread_of_each_replica_is_the_engines_and_all_others_count() -> None:
    engines = engine_threads(BEFORE, AFTER)
    assert engines == {3, 5}
    spent = used_by_parts(BEFORE, AFTER, engines)
    assert spent == {"HAProxy": 0, "Gateway": 7, "Router": 0, "Replica": 7}
