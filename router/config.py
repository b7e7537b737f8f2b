"""RouterConfig: how a router behaves."""

from dataclasses import dataclass

from engine.rank import SchedPolicy
from router.tenants import Terms

_NOT_NEGATIVE = (
    "aging_ms",
    "lookahead",
    "max_queued",
    "expecting",
    "settle_s",
    "suspect_after_s",
    "admission_preemption",
)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a router behaves.

    Attributes:
        policy: how tickets are ordered.
        aging_ms: ms of waiting that one level of priority is worth, >= 0.
        lookahead: requests beyond what fits that may be placed on one replica, so that it need
            not wait for a message to start the next; 0 binds strictly late.
        max_queued: tickets that may wait, >= 0.
        expecting: replicas that are meant to be there; see `RouterCore.expect`.
        settle_s: how long after the first report a router that has just started waits for the
            other replicas before it places anything; 0 places at once.
        suspect_after_s: a replica silent for longer is tried last.
        lost_after_s: a replica silent for so long is named by `RouterCore.silent`, > 0.
        admission_preemption: levels of priority by which a ticket that fits nowhere must exceed
            a request that runs, to be placed where it will preempt it; 0 is off. Without effect
            under FCFS.
        tenants: those that are told apart; nobody, and nothing is counted, if empty.
        fair_tenants: they share the replicas by weight; otherwise the rank alone decides.
        retry_min_s, retry_max_s: limits of every Retry-After, but for what is known exactly.
        no_replica_retry_s: about when to come back while no replica serves.

    Raises:
        ValueError: for a value out of range.
    """

    policy: SchedPolicy = SchedPolicy.PRIORITY
    aging_ms: int = 5_000
    lookahead: int = 2
    max_queued: int = 256
    expecting: int = 0
    settle_s: float = 0.0
    suspect_after_s: float = 2.0
    lost_after_s: float = 15.0
    admission_preemption: int = 0
    tenants: tuple[Terms, ...] = ()
    fair_tenants: bool = True
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0
    no_replica_retry_s: float = 5.0

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} {value} is negative")
        if self.lost_after_s <= 0:
            raise ValueError(f"lost_after_s {self.lost_after_s} is not positive")
        if not 0 < self.retry_min_s <= self.retry_max_s:
            raise ValueError(f"retry_min_s {self.retry_min_s}, retry_max_s {self.retry_max_s}")
