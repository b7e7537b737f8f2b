"""Rules for priorities and tenants."""

from collections import Counter
from random import Random

import pytest

from experiments.loads.errors import SpecError
from experiments.loads.load import Arrival, Load
from experiments.loads.rules import with_priorities, with_tenants

LOAD = Load("many", [Arrival(float(i), i % 100 + 1, 5) for i in range(2000)])


def test_shares_are_drawn_by_weight_and_the_same_for_one_seed() -> None:
    load = with_priorities(LOAD, "10:0.05,0:0.95", Random(1))
    counts = Counter(one.priority for one in load.arrivals)
    assert counts[10] == pytest.approx(100, rel=0.35)
    assert counts[10] + counts[0] == 2000
    assert with_priorities(LOAD, "10:0.05,0:0.95", Random(1)) == load
    assert with_priorities(LOAD, "10:1,0:19", Random(1)) == load, "only ratios count"
    assert with_priorities(LOAD, "10:0.05,0:0.95", Random(2)) != load


def test_bounds_are_tried_in_order_and_the_last_label_is_for_the_rest() -> None:
    load = with_priorities(LOAD, "7:prompt<=10, -3:total>95,1", Random(1))
    for one in load.arrivals:
        length = one.prompt_tokens
        assert one.priority == (7 if length <= 10 else -3 if length + 5 > 95 else 1)
    assert {one.priority for one in with_priorities(LOAD, "4", Random(1)).arrivals} == {4}


def test_tenants_are_given_by_the_same_rules_and_leave_the_priority() -> None:
    load = with_tenants(with_priorities(LOAD, "4", Random(1)), "small:output<=5,large", Random(1))
    assert {(one.tenant, one.priority) for one in load.arrivals} == {("small", 4)}
    shared = Counter(one.tenant for one in with_tenants(LOAD, "a:3,b:1", Random(1)).arrivals)
    assert shared["a"] == pytest.approx(1500, rel=0.1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("", "priorities must end with a label for the rest, not with ''"),
        ("high:0.5,0:0.5", "a priority must be a whole number, not 'high'"),
        ("3000000000:1", "a priority must be from -2147483647 to 2147483647, not 3000000000"),
        ("1:0,0:1", "priorities must have a share above 0, or a bound such as prompt<=256, after"),
        ("1:-1,0:1", "priorities must have a share above 0"),
        ("1:much,0:1", "priorities must have a share above 0, or a bound such as prompt<=256"),
        ("1:0.5,1:0.5", "priorities must have each of its labels once, not '1:0.5,1:0.5'"),
        ("1:prompt<=5,0:0.5", "priorities must end with a label for the rest, not with '0:0.5'"),
        ("1:0.5,0", "priorities must say for '1' which lengths it has, such as prompt<=256, not"),
        ("1:prompt<5,0", "priorities must say for '1' which lengths it has, such as prompt<=256"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(rule: str, message: str) -> None:
    with pytest.raises(SpecError) as wrong:
        with_priorities(LOAD, rule, Random(1))
    assert message in str(wrong.value)


def test_a_tenant_is_a_name() -> None:
    with pytest.raises(SpecError, match="a tenant must be a name without spaces, not 'a b'"):
        with_tenants(LOAD, "a b:1", Random(1))
