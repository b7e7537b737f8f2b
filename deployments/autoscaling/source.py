"""Source: a policy of the operator's as Python text, and what the text defines.

It is read where a deployment is made and travels as text to where it is run, which need not have
the file. Here and not elsewhere, since Serve's controller runs such texts too and has nothing of
the project but this package.
"""

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.abc import ExecutionLoader
from types import ModuleType
from typing import Any


class PolicyError(ValueError):
    """What is wrong with a policy of the operator's, in one line."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a policy is defined.

    Attributes:
        path: the file that was read, or a module's name.
        name: what of it is meant.
        text: the file's content; None for a module that is to be imported where it is run.
    """

    path: str
    name: str
    text: str | None

    def define(self, given: Mapping[str, ModuleType] = {}) -> object:
        """Run the text, in a new module each time, and return what it defines under the name.

        Args:
            given: modules by name, which imports of the text find, whatever else is installed.

        Raises:
            PolicyError: it cannot be run, or defines nothing of that name.
        """
        module = self._imported() if self.text is None else self._run(self.text, given)
        if not hasattr(module, self.name):
            raise PolicyError(f"defines no {self.name}")
        return getattr(module, self.name)

    def _imported(self) -> ModuleType:
        try:
            return importlib.import_module(self.path)
        except ModuleNotFoundError as error:
            if error.name and f"{self.path}.".startswith(f"{error.name}."):
                raise PolicyError("there is no such module") from None
            raise PolicyError(f"raises {told(error)}") from error
        except (Exception, SystemExit) as error:
            raise PolicyError(f"raises {told(error)}") from error

    def _run(self, text: str, given: Mapping[str, ModuleType]) -> ModuleType:
        loader = _Text(self.path, text)
        spec = importlib.util.spec_from_loader(self.path, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        if given:
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": _Importing(given)}
        # Dataclasses, among others, look their module up. No module that can be imported has the
        # name of a file.
        sys.modules[self.path] = module
        try:
            loader.exec_module(module)
        except SyntaxError as error:
            where = f"line {error.lineno}: " if error.filename == self.path else ""
            raise PolicyError(f"{where}{error.msg}") from None
        except (Exception, SystemExit) as error:
            raise PolicyError(f"raises {told(error, self.path)}") from error
        return module


class _Text(ExecutionLoader):
    """Runs a text as Python runs a file, so that tracebacks show its lines."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_source(self, fullname: str) -> str:
        return self._text


class _Importing:
    """What ``import`` does in a text to which some modules are given."""

    def __init__(self, given: Mapping[str, ModuleType]) -> None:
        self._given = given

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> ModuleType:
        module = self._given.get(name)
        if module is None or level:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if not fromlist:  # import a.b.c: what is wanted is a, with all that is below it
            for part in reversed(name.split(".")[1:]):
                outer = ModuleType("")
                setattr(outer, part, module)
                module = outer
        return module


def told(error: BaseException, path: str | None = None) -> str:
    """Return an error in one line, with the last line of a file that led to it."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f" in line {line}"
    return f"{type(error).__name__}{where}: {error}"
