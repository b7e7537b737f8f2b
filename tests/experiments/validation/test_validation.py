"""What the validation sends, takes for granted and judges; the servers are real elsewhere."""

import argparse

import pytest

from deployments.cli import parser as serve_parser
from deployments.config import ServeConfig
from experiments.report.compare import compare
from experiments.simulator.outcome import Outcome, Run
from experiments.simulator.scenario import Scenario
from experiments.simulator.simulation import simulate
from experiments.validation.judge import judge, table
from experiments.validation.options import flags_of, parser, pieces_of, settings_of
from experiments.validation.overhead import (
    PROMPT,
    WARM_UP,
    bursts,
    crowding,
    gateway_s,
    lone_requests,
)


class Steps:
    """10 ms a step, and one more for each prompt token."""

    def seconds(self, prefill: int, pairs: int, decodes: int, context: int) -> float:
        return 0.010 + 0.001 * prefill

    def copies(self, blocks: int) -> float:
        return 0.0


def options(*given: str) -> argparse.Namespace:
    poisson = "poisson:rate=2,seconds=1000,prompt=40,output=8"
    return parser().parse_args(["--trace", poisson, "--out", "x", *given])


def test_each_piece_lasts_as_long_whatever_its_rate() -> None:
    # Guards against: seconds of the trace taken for seconds of the clock.
    pieces = pieces_of(options("--rates", "0.5,4", "--rate-scale", "2", "--lasts", "100"))
    assert [rate for rate, _ in pieces] == [1.0, 8.0]
    for rate, load in pieces:
        assert 60 < load.seconds <= 100
        assert len(load.arrivals) == pytest.approx(200 * rate, rel=0.2)


def test_the_server_gets_the_settings_that_are_simulated() -> None:
    # Guards against: a flag that says something else than the simulation's configuration.
    given = ["--replicas", "3", "--prefill-chunk", "128", "--no-fair-tenants", "--placement"]
    settings = settings_of(options(*given, "most_free_blocks"))
    assert settings["prefix_cache"] is False
    served = vars(serve_parser().parse_args(["serve", *flags_of(settings)]))
    kept = {k: v for k, v in served.items() if k in ServeConfig.model_fields}
    assert ServeConfig.of(kept) == ServeConfig.of(settings)


@pytest.mark.parametrize(
    "given", [["--rates", "1,x"], ["--rates", "0"], ["--lasts", "0"], ["--fit-seconds", "no"]]
)
def test_bad_options_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*given)
    assert given[0] in capsys.readouterr().err


def test_what_a_lone_request_takes_comes_out_of_the_simulation_again() -> None:
    # Guards against: messages that are counted on the way to a first token but not made there,
    # or the other way round; then the simulation's first tokens would all be late, or early.
    load = lone_requests()
    config = ServeConfig(replicas=2, num_blocks=64, prefix_cache=False)
    run = simulate(Scenario("alone", config, network_s=0.002, gateway_s=0.005), load, Steps())
    assert len(run.outcomes) > WARM_UP
    assert gateway_s(run.outcomes, Steps(), network_s=0.002) == pytest.approx(0.005, abs=1e-6)


def test_how_much_bursts_slow_each_other_comes_out_of_the_simulation_again() -> None:
    # Guards against: bursts that do not keep all replicas busy, or too few of them.
    load = bursts(2)
    config = ServeConfig(replicas=2, num_blocks=512, prefix_cache=False)
    alone, crowded = (
        simulate(Scenario("a", config, crowding=by), load, Steps()).outcomes for by in (1.0, 1.2)
    )
    # A burst's first step begins before the other replica has one.
    assert crowding(crowded, alone) == pytest.approx(1.2, rel=0.02)
    assert crowding(alone, crowded) == 1.0
    with pytest.raises(ValueError, match="no request was answered"):
        crowding([], alone)


def test_warming_up_is_not_counted() -> None:
    slow = [Outcome(i, 0.0, 0, "", PROMPT, first_token_at=9.0) for i in range(WARM_UP)]
    fast = [Outcome(WARM_UP, 0.0, 0, "", PROMPT, first_token_at=0.030)]
    assert gateway_s([*slow, *fast], Steps(), 0.0) == pytest.approx(0.030 - 0.026)
    with pytest.raises(ValueError, match="no request was answered"):
        gateway_s([], Steps(), 0.0)


def run(name: str, ttft_s: float, tokens: int) -> Run:
    one = Outcome(0, 0.0, 0, "", 10, tokens, "ok", first_token_at=ttft_s, last_token_at=2.0)
    return Run(name, "simulated", "load", {}, [one], [], 2.0, 1.0, 1.0)


def test_what_is_off_by_more_than_its_limit_is_not_fine() -> None:
    verdicts = judge("light", compare(run("a", 1.2, 100), run("b", 1.0, 100)))
    ttft, tpot, tokens = verdicts
    assert (ttft.fine, tokens.fine) == (False, True)
    assert ttft.off == pytest.approx(0.2)
    assert tpot.off == pytest.approx(-0.2)
    assert "| light | TTFT p50, s" in table(verdicts).as_markdown()
    assert "+20.0%" in table(verdicts).as_markdown()


def test_nothing_to_compare_is_not_fine() -> None:
    # Guards against: a server that answered nothing, and so was off by nothing.
    none = Run("b", "measured", "load", {}, [], [], 2.0, 1.0, 1.0)
    assert not any(one.fine for one in judge("light", compare(run("a", 1.0, 5), none)))
