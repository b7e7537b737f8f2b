"""The documentation says what the code does.

Run as a script, this writes the tables that come from the code into the pages.
"""

import ast
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from deployments.cli import parser
from deployments.config import ServeConfig, settings_table
from deployments.exposition import VLLM_NAMES, Page
from deployments.launch import environment
from deployments.load import snapshot
from deployments.metrics import Counts
from deployments.openai import errors, unbuilt
from deployments.openai.document import document
from deployments.openai.errors import ApiError, BadRequest
from deployments.openai.models import ChatRequest, CompletionRequest, validated
from deployments.openai.served import Served
from deployments.openai.structured import grammar_of
from router.core import RouterConfig, RouterCore

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
API, CONFIGURATION = ROOT / "docs" / "api.md", ROOT / "docs" / "configuration.md"
SCHEDULING, OPERATIONS = ROOT / "docs" / "scheduling.md", ROOT / "docs" / "operations.md"
BASE: Mapping[str, Any] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
}
MODELS: Mapping[str, Any] = {"chat": ChatRequest, "completions": CompletionRequest}
UNBUILT = {"chat": unbuilt.CHAT, "completions": unbuilt.COMPLETIONS}


# ---- tables that come from the code -------------------------------------------------------


def refused_table() -> str:
    """A Markdown table of the fields that are refused, with the values that are let through."""
    rows = ["| field | on | lets through |", "|---|---|---|"]
    for name in dict.fromkeys([*unbuilt.CHAT, *unbuilt.COMPLETIONS]):
        places = {place: fields[name] for place, fields in UNBUILT.items() if name in fields}
        same = len(places) == 2 and len(set(map(repr, places.values()))) == 1
        for place, values in [("both", places["chat"])] if same else places.items():
            shown = ", ".join(f"`{json.dumps(value)}`" for value in values)
            rows.append(f"| `{name}` | {place} | {shown} |")
    return "\n".join(rows) + "\n"


GENERATED = [
    (CONFIGURATION, "settings", settings_table),
    (API, "refused fields", refused_table),
]


def between(page: str, name: str) -> re.Match[str]:
    """Find a generated table in a page: the text between its markers."""
    begin = re.escape(f"<!-- {name}: made by tests/test_docs.py -->\n")
    found = re.search(f"(?<={begin}).*?(?=<!-- end -->)", page, re.DOTALL)
    if found is None:
        raise LookupError(f"no place for {name}")
    return found


def write() -> None:
    """Write the generated tables into the pages."""
    for path, name, make in GENERATED:
        page = path.read_text()
        place = between(page, name)
        path.write_text(page[: place.start()] + "\n" + make() + "\n" + page[place.end() :])


@pytest.mark.parametrize(("path", "name", "make"), GENERATED, ids=["settings", "refused fields"])
def test_generated_tables_are_those_of_the_code(path: Path, name: str, make: Any) -> None:
    found = between(path.read_text(), name)[0].strip()
    assert found == make().strip(), "run: python tests/test_docs.py"


# ---- the API page ---------------------------------------------------------------------------


def table(page: Path, heading: str) -> Iterator[list[str]]:
    """Yield the cells of the rows of the first table under a heading."""
    section = page.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    for row in rows[1:]:
        yield [cell.strip() for cell in row.strip("|").split("|")]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("place", ["chat", "completions"])
def test_fields_that_work_are_those_of_the_model(place: str) -> None:
    listed = {
        code(field)[0]: default
        for field, where, default, _ in table(API, "Fields that work")
        if where in ("both", place)
    }
    fields = MODELS[place].model_fields
    assert listed.keys() == fields.keys()
    for name, default in listed.items():
        if default.startswith("`"):
            assert fields[name].default == json.loads(code(default)[0]), name
        assert (default == "required") == fields[name].is_required(), name


@pytest.mark.parametrize("place", ["chat", "completions"])
def test_refused_fields_are_refused_and_harmless_values_pass(place: str) -> None:
    seen = 0
    for field, where, values in table(API, "Fields that are refused"):
        if where not in ("both", place):
            continue
        seen += 1
        name = code(field)[0]
        for value in code(values):
            unbuilt.refuse_unbuilt(body_with(place, name, json.loads(value)), UNBUILT[place])
        with pytest.raises(BadRequest) as caught:
            unbuilt.refuse_unbuilt(body_with(place, name, ["something"]), UNBUILT[place])
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert seen >= 10


def body_with(place: str, name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {**BASE[place], outer: {inner: value} if inner else value}


@pytest.mark.parametrize("place", ["chat", "completions"])
def test_fields_said_to_be_ignored_are_ignored(place: str) -> None:
    line = next(line for line in API.read_text().splitlines() if line.startswith("**Unknown"))
    names = [name for name in code(line) if name != "…"]
    assert "user" in names
    for name in names:
        body = body_with(place, name, {"any": "thing"})
        unbuilt.refuse_unbuilt(body, UNBUILT[place])
        validated(MODELS[place], body)


def test_ways_to_ask_for_structured_output_are_those_of_the_document() -> None:
    line = next(line for line in API.read_text().splitlines() if line.startswith("**Structured"))
    schemas = document(Served("m", 100, 300), "0", False)["components"]["schemas"]
    for name, model in (("ChatRequest", ChatRequest), ("CompletionRequest", CompletionRequest)):
        others = schemas[name]["properties"].keys() - model.model_fields.keys()
        assert set(code(line)) == others
        for field in others:
            with pytest.raises(BadRequest):
                grammar_of({field: 5})


def test_the_document_has_the_endpoints_of_the_page() -> None:
    paths = document(Served("m", 100, 300), "0", False)["paths"]
    made = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    listed = {name for cell, state, _ in table(API, "Endpoints") for name in code(cell)}
    assert made == {
        name
        for name in listed
        if not name.startswith("HEAD ") and "/dashboard" not in name and "/openapi" not in name
    }


def test_endpoints_are_those_of_the_gateway() -> None:
    # From the source, since importing it would import Ray.
    source = (ROOT / "deployments" / "http.py").read_text()
    served = {
        path.replace(":path}", "}") for path in re.findall(r'@app\.\w+\(\s*"([^"]+)"', source)
    }
    listed = {
        name.split()[1]
        for endpoint, state, _ in table(API, "Endpoints")
        if state == "works"
        for name in code(endpoint)
    }
    assert listed == served


def test_errors_have_the_status_type_and_code_that_is_said() -> None:
    listed = {
        code(name)[0]: (int(status), code(kind)[0])
        for status, kind, name, _, _ in table(API, "Errors")
        if name
    }
    made: list[ApiError] = [
        errors.unsupported("x"),
        errors.too_long(2, 1),
        errors.never_fits(2, 1),
        errors.queue_full(1.0),
        errors.tenant_busy(1, 1.0),
        errors.tenant_rate(1, 1.0),
        errors.out_of_time("end"),
        errors.no_replica(1.0),
        errors.unknown_model("x"),
        errors.internal(),
    ]
    for error in made:
        assert listed[str(error.code)] == (error.status, error.type)
    again = {code(name)[0] for *_, name, _, retry in table(API, "Errors") if retry and name}
    assert again == {error.code for error in made if "Retry-After" in error.headers()}
    for path in (ROOT / "deployments" / "openai").glob("*.py"):
        for name in re.findall(r'\bcode(?:: str \| None)? ?= ?"(\w+)"', path.read_text()):
            assert name in listed, f"{path.name} answers {name}"


def test_metrics_are_those_of_the_page() -> None:
    gauges = RouterCore(RouterConfig(), time.monotonic, Random(0)).gauges()
    page = Page("model").render(Counts(), gauges, {}, {})
    made = dict(re.findall(r"^# TYPE tidegate:(\w+) (\w+)$", page, re.MULTILINE))
    assert {code(name)[0]: kind for name, kind, _ in table(API, "Metrics")} == made


# ---- commands and settings ------------------------------------------------------------------


def flags_of_serve() -> set[str]:
    commands = next(action for action in parser()._actions if action.dest == "command")
    return set(dict(commands.choices)["serve"]._option_string_actions)


def test_every_flag_of_serve_is_documented() -> None:
    page = CONFIGURATION.read_text()
    for flag in flags_of_serve() - {"-h", "--help"}:
        assert f"`{flag}`" in page, flag


def test_every_flag_of_top_is_documented_with_its_default() -> None:
    commands = next(action for action in parser()._actions if action.dest == "command")
    top = dict(commands.choices)["top"]
    listed = {
        code(flag)[0]: code(default) for flag, default, _ in table(OPERATIONS, "tidegate top")
    }
    assert listed.keys() == set(top._option_string_actions) - {"-h", "--help"}
    for flag, default in listed.items():
        if default:
            assert str(top._option_string_actions[flag].default) in (default[0], f"{default[0]}.0")


def test_vllm_names_are_documented() -> None:
    listed = {
        name.removeprefix("vllm:")
        for names, _ in table(OPERATIONS, "vLLM's metric names")
        for name in code(names)
    }
    assert listed == VLLM_NAMES


def test_what_load_says_is_documented() -> None:
    gauges = RouterCore(RouterConfig(), time.monotonic, Random(0)).gauges()
    load = snapshot("model", gauges, {}, {}, Counts())
    parts = {name for part, _ in table(OPERATIONS, "The dashboard") for name in code(part)}
    assert parts | {"model"} == load.keys()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_flags_in_examples_exist(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "tidegate serve" in line or "SERVE_ARGS" in line:
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line):
                assert flag in flags_of_serve(), line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_every_make_target_is_told_of_by_make_and_by_the_page() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    # Steps of `make serve` and of `make test`, which do them.
    targets = set(phony[1].split()) - {"help", "model", "lint", "types", "imports"}
    assert set(re.findall(r"@echo 'make (\w+)", makefile)) == targets
    listed = {code(target)[0] for target, *_ in table(CONFIGURATION, "make")}
    assert listed == {f"make {target}" for target in targets}


def test_settings_in_the_latency_table_exist() -> None:
    for cell, *_ in table(SCHEDULING, "What each setting does to latency"):
        assert code(cell)[0] in ServeConfig.model_fields


def test_every_variable_that_serve_sets_is_documented(tmp_path: Path) -> None:
    (tmp_path / "ha").mkdir()
    page = CONFIGURATION.read_text()
    for name in environment(tmp_path):
        assert f"`{name}`" in page, name


# ---- links and examples ---------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert page.exists(), target
        if anchor:
            assert anchor in anchors(page.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    for name in code(path.read_text()):
        if re.fullmatch(r"(engine|router|deployments|experiments|tests|docs)/[\w./]*", name):
            assert (ROOT / name).exists(), name


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_compiles(path: Path) -> None:
    for block in python_blocks(path):
        ast.parse(block, path.name)


def test_the_examples_of_scheduling_run() -> None:
    blocks = python_blocks(SCHEDULING)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/scheduling.md", "exec"), names)


if __name__ == "__main__":
    write()
