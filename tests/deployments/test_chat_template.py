"""A chat template of the operator's: read once, where the application is built."""

from pathlib import Path

import pytest

from deployments.chat_template import use_template, with_template
from deployments.config import ConfigError, ServeConfig
from deployments.openai.tool_formats import HERMES, dialect_of
from engine.loader import load_tokenizer

HERMES_FILE = Path(__file__).parents[1] / "data" / "hermes.jinja"


def test_without_a_template_the_models_own_stays(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    own = tokenizer.chat_template
    use_template(tokenizer, ServeConfig())
    assert tokenizer.chat_template == own
    assert dialect_of("auto", tokenizer) is None


def test_a_template_replaces_the_models_and_teaches_it_tools(demo_model_dir: Path) -> None:
    tokenizer = load_tokenizer(demo_model_dir)
    use_template(tokenizer, ServeConfig.of({"chat_template": str(HERMES_FILE)}))
    dialect = dialect_of("auto", tokenizer)
    assert dialect is not None
    assert dialect.form is HERMES
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert '"name": "f"' in text
    assert text.endswith("<|im_start|>assistant\n")


def test_the_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}")
    config = with_template(ServeConfig.of({"chat_template": str(file)}))
    file.unlink()
    assert with_template(config).template == "{{ messages }}"


def test_whatever_transformers_takes_is_taken(tmp_path: Path, demo_model_dir: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(
        "{% for m in messages %}{% generation %}{{ m['content'] | tojson }}{% endgeneration %}"
        "{% if strftime_now('%Y') == '' %}{% break %}{% endif %}{% endfor %}"
    )
    tokenizer = load_tokenizer(demo_model_dir)
    use_template(tokenizer, ServeConfig.of({"chat_template": str(file)}))
    turns = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == '"hi"'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"{% if %}", "line 1"),
        (b"{% endfor %}", "line 1"),
        (b"\n{% generation %}", "line 2"),
        (b"{{ x | no_such_filter }}", "line 1"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        with_template(ServeConfig.of({"chat_template": str(file)}))
    assert str(file) in str(caught.value)
    assert "chat_template" in str(caught.value)
