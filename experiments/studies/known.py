"""Which studies there are."""

from collections.abc import Mapping
from typing import Final

from experiments.studies import autoscaling, memory, placement, priorities, router
from experiments.studies.study import Study

STUDIES: Final[Mapping[str, Study]] = {
    one.name: one
    for one in (
        placement.STUDY,
        priorities.STUDY,
        autoscaling.STUDY,
        memory.STUDY,
        router.STUDY,
    )
}
