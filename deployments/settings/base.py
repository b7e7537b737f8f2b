"""What all settings have in common."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings never change, and are what they say: nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
