import pytest

from router.config import RouterConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"aging_ms": -1},
        {"lookahead": -1},
        {"max_queued": -1},
        {"expecting": -1},
        {"settle_s": -1.0},
        {"suspect_after_s": -1.0},
        {"lost_after_s": 0.0},
        {"admission_preemption": -1},
        {"retry_min_s": 0.0},
        {"retry_min_s": 70.0},
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RouterConfig(**wrong)  # type: ignore[arg-type]
