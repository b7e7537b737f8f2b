"""What all objects of a request have in common."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from deployments.openai.body import without_nulls


class Wire(BaseModel):
    """An object of a request: strict, and null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return without_nulls(value) if isinstance(value, Mapping) else value
