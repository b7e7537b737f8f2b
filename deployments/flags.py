"""Flags: the settings of `ServeConfig` as options of a command line."""

import argparse
import types
import typing
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NoReturn

from deployments.config import ServeConfig


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def add_settings(
    to: argparse._ActionsContainer, names: Iterable[str], notes: Mapping[str, str] | None = None
) -> None:
    """Give a command the flags of settings; one that is not given is None.

    Args:
        to: a parser, or a group of one.
        names: fields of `ServeConfig`, in the order in which help shows them.
        notes: what help says of some of them besides.
    """
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        value = _value(ServeConfig.model_fields[name].annotation)
        text = " ".join(filter(None, (help_of(name), (notes or {}).get(name))))
        to.add_argument(flag, help=text, default=None, **value)


def help_of(name: str) -> str:
    """Return what argparse is to say of a setting."""
    text = ServeConfig.model_fields[name].description or ""
    return text.replace("%", "%%").replace("`", "")


def _value(annotation: Any) -> dict[str, Any]:
    """Return argparse's options for a flag of this type."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kind = kinds[0] if union else annotation
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(kind) is typing.Literal:
        return {"choices": list(typing.get_args(kind))}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"choices": [member.value for member in kind]}
    if kind in (int, float):
        return {"type": kind, "metavar": "N"}
    return {"metavar": "TEXT"}
