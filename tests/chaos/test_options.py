"""What is drawn is what a server takes."""

import argparse
from random import Random

import pytest

from deployments.cli import parser
from deployments.config import ServeConfig
from tests.chaos.options import flags, options


@pytest.mark.parametrize("seed", range(40))
def test_a_server_takes_what_is_drawn(seed: int) -> None:
    drawn = options(Random(seed))
    config = ServeConfig.of(drawn)
    given: argparse.Namespace = parser().parse_args(["serve", "demo", *flags(drawn)])
    assert {name: getattr(given, name) for name in drawn} == drawn
    assert {name: getattr(config, name) for name in drawn} == drawn
