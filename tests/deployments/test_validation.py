"""Sentences about what is wrong."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.validation import explain, show


class Inner(BaseModel):
    number: int = Field(default=0, ge=1, lt=9)


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    inner: list[Inner] = Field(default=[], max_length=2)
    share: float = Field(default=0.5, gt=0)
    word: str = Field(default="", pattern="^[a-z]*$")


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ({"inner": [{}, {"number": 0}]}, "inner.1.number", "must be at least 1, not 0"),
        ({"inner": [{"number": 9}]}, "inner.0.number", "must be less than 9, not 9"),
        ({"inner": [5]}, "inner.0", "must be an object, not 5"),
        ({"inner": 5}, "inner", "must be a list, not 5"),
        ({"inner": [{}, {}, {}]}, "inner", "must be a list of at most 2, not a list of 3"),
        ({"share": 0}, "share", "must be greater than 0, not 0"),
        ({"share": float("inf")}, "share", "must be a finite number, not inf"),
        ({"share": None}, "share", "must be a number, not null"),
        ({"word": {"a": 1}}, "word", "must be a string, not an object"),
        ({"other": 5}, "other", "is not a known setting"),
    ],
    ids=str,
)
def test_a_sentence_names_field_limit_and_value(value: object, field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(value)
    problem = explain(caught.value)
    assert problem.field == field
    assert problem.message == f"'{field}' {message}"


def test_a_kind_of_error_without_words_here_still_names_the_field() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"word": "A"})
    assert explain(caught.value).message.startswith("'word': String should match")


def test_private_values_are_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"share": "a secret"})
    assert "secret" in explain(caught.value).message
    assert explain(caught.value, {"share"}).message == "'share' must be a number, not a string"


def test_shown_values_are_short_and_on_one_line() -> None:
    assert show("a\nb") == r"'a\nb'"
    assert len(show("x" * 1000)) < 50
    assert len(show(10**4000)) < 50
    assert show([1, 2]) == "a list of 2"
    assert show(True) == "true"
    assert show(object()) == "something else"
