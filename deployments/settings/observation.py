"""Settings: what operators see."""

from typing import Literal

from pydantic import Field

from deployments.settings.base import Settings


class ObservationSettings(Settings):
    """What operators see."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least serious messages that are logged."
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        description="How lines of the log are written: to be read, or one JSON object each.",
    )
    log_requests: bool = Field(
        default=False,
        description="Log a line for each request when it ends: its id, status, tokens and times, "
        "never its content.",
    )
    vllm_metrics: bool = Field(
        default=False,
        description="Say again under vLLM's names, `vllm:…`, what it has on its metrics page too.",
    )
    tenant_metrics: bool = Field(
        default=True,
        description="Name the tenants of `key_file` on the metrics page, which needs no key.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="Where traces go, as OTLP over HTTP: the collector's address, such as "
        "`http://localhost:4318`. Default: the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or "
        "OTEL_EXPORTER_OTLP_ENDPOINT, without which there are none.",
    )
