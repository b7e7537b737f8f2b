"""Muster: the replicas that serve, and the hope for one while none does. No Ray, no clock."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from deployments.config import ServeConfig
from router.ticket import Decision


class Comer(Protocol):
    """What is known of a replica."""

    @property
    def leaving(self) -> bool:
        """Whether it takes nothing new."""


class Hoping(Protocol):
    """A bounded wait for the first replica; `Muster.despair` is to be called when it ends."""

    @property
    def alive(self) -> bool:
        """Whether it has begun and not ended."""

    def begin(self) -> None:
        """Hope from now on."""

    def fulfil(self) -> None:
        """There is a replica."""


class Core(Protocol):
    """What a `RouterCore` is here."""

    def expect(self, replicas: int) -> list[Decision]:
        """Say how many replicas are meant to be there."""


Known = TypeVar("Known", bound=Comer)


class Muster(Generic[Known]):
    """Replicas come and go; while none is there, requests wait for one as long as there is hope.

    Hope begins at the start, when the last replica is lost although somebody wants one, and, where
    replicas come when they are asked for, with every request that meets none. A deployment that
    may scale to none hopes for none until somebody asks.

    Args:
        config: says whether the replicas are scaled, and whether to none.
        expected: replicas that there are to be, at most.
        core: is told to expect none when hope has ended, and ``expected`` as soon as there is hope
            or a replica again.
        hope: begins and ends here.
        waits: whether a request waits for a replica.
        settle: is given what the core decides.
        changed: called when a replica has come or gone.
    """

    def __init__(
        self,
        config: ServeConfig,
        expected: int,
        core: Core,
        hope: Hoping,
        waits: Callable[[], bool],
        settle: Callable[[Iterable[Decision]], None],
        changed: Callable[[], None],
    ) -> None:
        self._autoscaled = config.autoscaling != "off"
        self._expected = expected
        self._core = core
        self._hope = hope
        self._waits = waits
        self._settle = settle
        self._changed = changed
        self._replicas: dict[str, Known] = {}
        self.may_sleep = self._autoscaled and config.min_replicas == 0
        """There may be no replica for hours, because nobody asks for one."""

    @property
    def replicas(self) -> Mapping[str, Known]:
        """Those that serve, by name."""
        return self._replicas

    def start(self) -> None:
        """Nobody has been met yet."""
        if not self.may_sleep:
            self._hope.begin()

    def asked(self) -> None:
        """A request has come: where replicas come when they are asked for, a reason to hope."""
        if self._autoscaled and all(one.leaving for one in self._replicas.values()):
            self._begin()

    def meet(self, replica: str, known: Known) -> None:
        """A replica serves, or is known better."""
        new = replica not in self._replicas
        self._replicas[replica] = known
        if new:
            self._changed()
            self._hope.fulfil()
            self._settle(self._core.expect(self._expected))

    def lose(self, replica: str, decisions: Iterable[Decision]) -> None:
        """A replica is no more, which is fine if it never served.

        Args:
            replica: its name.
            decisions: what the core makes of it.
        """
        if self._replicas.pop(replica, None) is not None:
            self._changed()
        # With nobody waiting, an autoscaler may have let the last one go.
        if not self._replicas and (not self._autoscaled or self._waits()):
            self._begin()
        self._settle(decisions)

    def despair(self) -> None:
        """Hope has ended without a replica: those that wait are told so."""
        self._settle(self._core.expect(0))

    def _begin(self) -> None:
        if not self._hope.alive:
            self._hope.begin()
            self._settle(self._core.expect(self._expected))
