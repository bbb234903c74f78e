"""Habits that a reader counts on: names, sizes, tests that assert, no trace of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import (
    CORE,
    EXAMPLES,
    FACES,
    PLUGINS,
    ROOT,
    TESTS,
    imports,
    module_name,
    python_files,
    statements,
)

# Words that no docstring begins with: they leave open what comes back.
OPENINGS = re.compile(r"(What|Whether|Where|Which|How|Who|Something|Everything|Somebody|Nobody)\b")
# What tests may import from anywhere: what they share, and the programs that some of them are about.
SHARED = ("tests.support", "tests.benchmarks", "tests.gpu")
VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
# Folders that hold one machine's things, put together so that this line is no find itself.
MACHINE = re.compile(rf"(?<![\w.}}$])/({'|'.join(('work', 'root', 'home', 'Users', 'opt'))})/")
TEXTS = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".html", ".css", ".json", ""}


def own_files() -> list[Path]:
    """Every text file that the project is made of."""
    tops = [CORE, PLUGINS, EXAMPLES, TESTS, ROOT / "merge_recipes", ROOT / "docs", ROOT / ".ci"]
    found = [f for top in tops for f in top.rglob("*") if f.is_file()]
    found += [f for f in ROOT.iterdir() if f.is_file() and f.name not in (".git", ".coverage")]
    kept = [f for f in found if f.suffix in TEXTS and "__pycache__" not in f.parts]
    return sorted(f for f in kept if not f.name.startswith(".coverage"))


def test_no_file_or_folder_has_a_vague_name() -> None:
    vague = [
        str(file.relative_to(ROOT))
        for file in python_files(CORE, PLUGINS, EXAMPLES, TESTS)
        for part in file.relative_to(ROOT).with_suffix("").parts
        if set(part.split("_")) & VAGUE
    ]
    assert not vague


def test_every_room_says_what_lives_there() -> None:
    rooms = {file.parent for file in python_files(CORE, PLUGINS)} - {PLUGINS}
    silent = [
        str(room.relative_to(ROOT))
        for room in rooms
        if not (room / "__init__.py").is_file()
        or len(
            (ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or "").split()
        )
        < 4
    ]
    assert sorted(silent) == []


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield each docstring of a file with its line, those below fields among them."""
    for node in statements(ast.parse(file.read_text("utf-8"))):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node.lineno, value.value


@pytest.mark.parametrize(
    "file", python_files(CORE, PLUGINS, EXAMPLES), ids=lambda file: str(file.relative_to(ROOT))
)
def test_no_docstring_begins_with_a_word_that_leaves_open_what_comes_back(file: Path) -> None:
    vague = [
        f"{file.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for line, text in docstrings(file)
        if OPENINGS.match(text.strip())
    ]
    assert vague == []


def test_every_module_of_core_and_plugins_says_what_it_is() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in python_files(CORE, PLUGINS, EXAMPLES)
        if not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ]
    assert not silent


def test_nothing_names_a_place_on_one_machine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for file in own_files()
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if MACHINE.search(line) and not re.search(r"https?://\S*" + MACHINE.pattern, line)
    ]
    assert not found


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in own_files()
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


def taken_from_tests(file: Path) -> Iterator[str]:
    """Yield each import of another test, and of a module of another folder of tests that none share."""
    here = module_name(file, ROOT).rpartition(".")[0]
    for found in imports(file, ROOT):
        for name in found.names or ("",):
            whole = f"{found.module}.{name}"
            beside = found.module == here or found.module.startswith(f"{here}.")
            if found.module.partition(".")[0] != "tests":
                continue
            if ".test_" in whole or not (beside or whole.startswith(SHARED)):
                yield f"{file.relative_to(ROOT)}:{found.line}: {whole}"


def test_what_tests_share_lives_in_support() -> None:
    assert [line for file in python_files(TESTS) for line in taken_from_tests(file)] == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.core.test_seeds import seeds",
        "from tests.house.test_wheel import fresh_venv",
        "from tests.core import test_seeds as seeds",
        "from tests.plugins.boom.recipes import run",
    ],
)
def test_the_rule_on_sharing_finds_an_import_from_other_tests(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tests" / "house" / "test_new.py"
    file.parent.mkdir(parents=True)
    allowed = "from tests.support import tiny\nfrom tests.house.nouns import noun\n"
    file.write_text(f"{allowed}def test_it():\n    {line}\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [found.partition(": ")[0] for found in taken_from_tests(file)] == [
        "tests/house/test_new.py:4"
    ]


def taken_past_faces(file: Path) -> Iterator[str]:
    """Yield each public name that a test of another room takes from the module behind a room's face."""
    place = file.relative_to(TESTS).parts
    for found in imports(file, ROOT):
        room = ".".join(found.module.split(".")[:2])
        own = place[:2] == ("core", room.rpartition(".")[2])
        if room in FACES and room != found.module and not own:
            public = sorted({*found.names} & FACES[room].keys())
            yield from (f"{'/'.join(place)}:{found.line}: {room}.{name}" for name in public)


def test_tests_of_other_rooms_take_public_names_from_faces() -> None:
    assert [line for file in python_files(TESTS) for line in taken_past_faces(file)] == []


def checks(node: ast.AST, local: dict[str, ast.FunctionDef], seen: frozenset[str]) -> bool:
    """Whether this code judges anything: an assert, `raises`, or a call that does or that must succeed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert):
            return True
        if isinstance(inner, ast.Raise) and "AssertionError" in ast.unparse(inner):
            return True
        if isinstance(inner, ast.Call):
            name = ast.unparse(inner.func).rpartition(".")[2]
            if name in ("raises", "warns", "fail") or name.startswith(("check_", "assert_")):
                return True
            if name == "run" and any(ast.unparse(k) == "check=True" for k in inner.keywords):
                return True
            if name in local and name not in seen and checks(local[name], local, seen | {name}):
                return True
    return False


def claims_of(file: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(file.read_text("utf-8"))
    local = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for name, node in local.items():
        if name.startswith("test_"):
            yield name, checks(node, local, frozenset({name}))


@pytest.mark.parametrize(
    "file",
    [f for f in python_files(TESTS, EXAMPLES) if f.name.startswith("test_")],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_every_test_asserts(file: Path) -> None:
    tests = dict(claims_of(file))
    assert tests, "a test file without a test"
    assert [name for name, asserts in tests.items() if not asserts] == []


def test_the_rule_on_asserting_finds_a_test_that_does_not() -> None:
    source = "def test_nothing() -> None:\n    print('all is well')\n"
    node = ast.parse(source).body[0]
    assert not checks(node, {}, frozenset())


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda script: script.name)
def test_example_scripts_are_short(script: Path) -> None:
    assert len(script.read_text("utf-8").splitlines()) <= 32
    assert ast.get_docstring(ast.parse(script.read_text("utf-8")))


def test_there_are_example_scripts() -> None:
    assert len(list(EXAMPLES.glob("*.py"))) >= 2


@pytest.mark.parametrize(
    ("line", "found"),
    [("see /{}/me/model", True), ("'/{}/x'", True), ("out/{}/states", False), ("/{}s/x", False)],
)
def test_the_rule_on_machines_knows_a_place_from_a_part_of_a_path(line: str, found: bool) -> None:
    assert bool(MACHINE.search(line.format("work"))) is found
