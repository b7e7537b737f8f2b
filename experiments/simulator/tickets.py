"""Tickets: what a gateway tells the router of a request."""

from deployments.messages import ReplicaInfo
from deployments.order import blocks_of
from deployments.prefix import prefix_of
from experiments.simulator.errand import Errand
from experiments.simulator.scenario import KIND, Scenario
from experiments.simulator.texts import Texts
from experiments.simulator.timeline import Timeline
from router.ticket import Ticket


class Tickets:
    """Makes tickets as `deployments.order.Order.ticket` does."""

    def __init__(self, scenario: Scenario, texts: Texts, timeline: Timeline) -> None:
        """Make none yet.

        Args:
            scenario: says what replicas are, and what the limits are.
            texts: tokens of prompts.
            timeline: the time.
        """
        config = scenario.config
        self._scenario = scenario
        self._texts = texts
        self._timeline = timeline
        self._info = ReplicaInfo(KIND, config.block_size, scenario.blocks, scenario.max_model_len)
        self._prefixed = config.by_prefix

    def of(self, errand: Errand) -> Ticket:
        """Return the ticket for an errand's next life, which decodes not."""
        arrival, index, life = errand.arrival, errand.outcome.index, errand.lives
        generated, again = errand.generated, errand.going_on
        now, most = blocks_of(arrival.prompt_tokens, generated, arrival.output_tokens, self._info)
        prefix: tuple[int, ...] = ()
        if self._prefixed:
            tokens = self._texts.prompt(index, arrival) + [0] * generated
            prefix = prefix_of(tokens, self._info.block_tokens, self._texts.salt(arrival)).told
        return Ticket(
            # A new name for each life: a late report about an earlier one means nothing then.
            id=f"{index}.{life}" if life else str(index),
            priority=arrival.priority,
            arrival=round(1_000 * errand.came_at),
            blocks_now=now,
            blocks_max=most,
            again=again,
            # What has begun goes on only where the same bits come out.
            kind=KIND if generated else "",
            tenant=arrival.tenant,
            cost=0 if again else arrival.prompt_tokens,
            call=f"{index}/{errand.tries}",
            start_within_s=self._left_s(errand),
            prefix=prefix,
        )

    def _left_s(self, errand: Errand) -> float | None:
        """Seconds until it is given up, None for never."""
        scenario = self._scenario
        limits = [scenario.end_s]
        if not errand.generated:
            limits.append(scenario.first_token_s)
        given = [limit for limit in limits if limit is not None]
        if not given:
            return None
        return max(0.0, errand.came_at + min(given) - self._timeline.now)
