"""A chat template of the operator's, in place of the model's own."""

from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from deployments.config import ConfigError, ServeConfig


def with_template(config: ServeConfig) -> ServeConfig:
    """Return the configuration with what the file of its chat template holds; it is read once.

    So the file has to be where the application is built, and on no other machine.

    Raises:
        ConfigError: the file cannot be read, or is no template.
    """
    if config.chat_template is None or config.template is not None:
        return config
    try:
        source = Path(config.chat_template).read_text("utf-8")
        _compile(source)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise ConfigError(f"chat_template {config.chat_template}: {reason}") from None
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"chat_template {config.chat_template}: line {error.lineno}: {error.message}"
        ) from None
    return config.with_template(source)


def _compile(source: str) -> None:
    """See a template's mistakes now and not at each request, by rendering no conversation.

    Raises:
        TemplateSyntaxError: it has one.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    render_jinja_template([], chat_template=source)


def use_template(tokenizer: Any, config: ServeConfig) -> None:
    """Give a tokenizer of transformers the operator's chat template, if there is one.

    Raises:
        ConfigError: see ``with_template``.
    """
    template = with_template(config).template
    if template is not None:
        tokenizer.chat_template = template
