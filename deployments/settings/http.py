"""Settings: what clients meet."""

from typing import Literal

from pydantic import Field, SecretStr

from deployments.settings.base import Settings

API_KEY_VARIABLE = "TIDEGATE_API_KEY"


class HttpSettings(Settings):
    """What clients meet."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="TCP port to listen on.")
    api_key: SecretStr | None = Field(
        default=None,
        description="Key that clients send as `Authorization: Bearer KEY`. "
        f"Default: the variable {API_KEY_VARIABLE}, without which the API is open to all.",
    )
    key_file: str | None = Field(
        default=None,
        min_length=1,
        description="A YAML file of tenants, their API keys and their limits; it is read where "
        "the application is built.",
    )
    chat_template: str | None = Field(
        default=None,
        min_length=1,
        description="A Jinja file to write conversations with, instead of the model's own chat "
        "template; it is read where the application is built.",
    )
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        default="auto",
        description="How the model writes calls of tools; `auto` looks it up in the chat template.",
    )
    cors_origins: list[str] = Field(
        default=[],
        description="Origins whose pages may call the API from a browser, such as "
        "`https://app.example`; `*` is any. As a flag, with commas between them.",
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Larger request bodies get a 413."
    )
    max_prompts: int = Field(
        default=128,
        ge=1,
        description="Choices of one request at most: its prompts, times `n`.",
    )
