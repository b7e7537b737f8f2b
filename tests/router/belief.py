"""What a router must believe of its replicas' health: a plain model that looks at everybody."""

from dataclasses import dataclass, field

from router.report import Report

SUSPECT_AFTER_S, LOST_AFTER_S, NAP_S = 2.0, 15.0, 5.0


@dataclass
class Belief:
    """Beliefs of one life of a router, by name of the replica."""

    settle_s: float
    expecting: int
    newest: dict[str, int] = field(default_factory=dict)  # those it knows: seq of the newest report
    lost_at: dict[str, int] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    ticked: float | None = None
    first_at: float | None = None

    def __post_init__(self) -> None:
        self.settling = self.settle_s > 0

    @property
    def suspects(self) -> set[str]:
        return self.silent | self.unreachable

    def see_time(self, now: float) -> None:
        """The router reads its clock."""
        if self.ticked is not None and now - self.ticked > NAP_S:
            self.heard = dict.fromkeys(self.heard, now)
            self.ticked = now
        self.silent |= {name for name, at in self.heard.items() if now - at > SUSPECT_AFTER_S}

    def hear(self, report: Report, now: float) -> bool:
        """A report arrives; whether it is news."""
        name = report.replica
        if name in self.newest:
            if report.seq <= self.newest[name]:
                return False
        elif name in self.lost_at and (report.held is None or report.seq <= self.lost_at[name]):
            return False
        self.newest[name] = report.seq
        self.heard[name] = now
        for marks in (self.silent, self.unreachable, self.closed, self.leaving):
            marks.discard(name)
        if report.leaving:
            self.leaving.add(name)
        if self.first_at is None:
            self.first_at = now
        return True

    def lose(self, name: str) -> None:
        if name in self.newest:
            self.lost_at[name] = self.newest.pop(name)
            del self.heard[name]
            for marks in (self.silent, self.unreachable, self.closed, self.leaving):
                marks.discard(name)

    def dead(self, now: float) -> set[str]:
        return {name for name, at in self.heard.items() if now - at >= LOST_AFTER_S}

    def settles(self, now: float, complete: set[str]) -> bool:
        """Whether it still settles, when it knows the whole of those replicas."""
        heard = len(complete - self.leaving) >= self.expecting > 0
        late = self.first_at is not None and now - self.first_at >= self.settle_s
        self.settling = self.settling and not heard and not late
        return self.settling
