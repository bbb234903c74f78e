"""The table of `make mutants` names what there is, and its faults are planted where they mean something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mutants.known import EQUIVALENT
from tests.support.mutants.plant import mutants
from tests.support.mutants.rooms import ROOMS
from tests.support.mutants.trial import Reach
from tests.support.sources import ROOT


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in mutants(Path("a.py"), source)]


@pytest.mark.parametrize("name", ROOMS)
def test_every_pattern_of_a_room_finds_files(name: str) -> None:
    room = ROOMS[name]
    assert [p for p in (*room.sources, *room.tests) if not list(ROOT.glob(p))] == []


def test_every_module_of_a_plugin_is_of_one_room() -> None:
    files = [path for room in ROOMS.values() for path in room.files(ROOT)]
    assert sorted(set(files)) == sorted(files)
    modules = [path.relative_to(ROOT) for path in (ROOT / "plugins").rglob("*.py")]
    assert sorted({*modules} - {*files}) == []


def test_what_is_known_to_be_equivalent_is_still_there() -> None:
    lines: dict[str, set[str]] = {}
    for room in ROOMS.values():
        for path in room.files(ROOT):
            text = (ROOT / path).read_text("utf-8")
            lines.setdefault(path.name, set()).update(line.strip() for line in text.splitlines())
    gone = [(file, before) for file, before, *_ in EQUIVALENT if before not in lines.get(file, ())]
    assert gone == []


def test_operators_numbers_and_forgotten_calls_are_planted() -> None:
    source = "def save(x):\n    sync(x)\n    return x + 1\n"
    assert changes(source) == [
        ("sync(x)", "pass"),
        ("sync(x)", "sync(None)"),
        ("return x + 1", "return x - 1"),
        ("return x + 1", "return x + 2"),
    ]


def test_thresholds_properties_and_checks_are_planted() -> None:
    source = (
        "LEAST = 1e-3\n\n\n"
        "class A:\n"
        "    @property\n"
        "    def least(self) -> float:\n"
        "        if self.x == 0:\n"
        '            raise ValueError("x is 0")\n'
        "        return LEAST\n"
    )
    assert changes(source) == [
        ("LEAST = 1e-3", "LEAST = None"),
        ("LEAST = 1e-3", "LEAST = 1.001"),
        ("if self.x == 0:", "if self.x != 0:"),
        ("if self.x == 0:", "if self.x == 1:"),
        ('raise ValueError("x is 0")', "pass"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""A module."""\nimport a\n__all__ = ["b"]\nArray = list[int]\n',
        "from a import b\nif TYPE_CHECKING:\n    from c import d\n",
        "@dataclass(frozen=True)\nclass A:\n    x: Literal['a', 'b']\n    revision = 2\n",
        "def f(x: int | None) -> tuple[int, str]:\n    ...\n",
        'def f(x):\n    return f"{x} is odd"\n',
    ],
)
def test_what_no_test_should_find_is_not_planted(source: str) -> None:
    assert changes(source) == []


def test_buffers_guards_messages_and_streams_stay() -> None:
    source = (
        "def f(a, b, seed):\n"
        "    warn('they are odd', a)\n"
        "    c = add(a, out=fresh(a))\n"
        '    d = zip(b, strict=True), open(b, encoding="utf-8"), stable_seed(seed, "rows")\n'
        "    return c < LEAST, d\n"
    )
    afters = [after for _, after in changes(source)]
    assert "warn('they are odd', None)" in afters
    assert "c = add(None, out=fresh(a))" in afters
    assert any("stable_seed(None" in after for after in afters)
    spared = ("warn(None", "warn(a)", "out=None", "fresh(None)", "strict=None", "XX", "<=")
    assert [after for after in afters if any(part in after for part in spared)] == []


def test_a_larger_sample_has_all_of_a_smaller_one() -> None:
    source = "def f(a, b):\n    return a + b - 1 if a else b * 2\n"
    few, more = (
        {mutant.code for mutant in mutants(Path("a.py"), source, sample=n)} for n in (3, 6)
    )
    assert len(few) == 3
    assert few < more
    other = {mutant.code for mutant in mutants(Path("a.py"), source, sample=3, seed=5)}
    assert other != few


def test_all_tests_try_what_only_an_import_runs() -> None:
    reach = Reach({"a.py": {1: [], 5: ["t.py::b"]}}, {"t.py::a": 1.0, "t.py::b": 1.0})
    path = Path("a.py")
    assert reach.tests(path, (5, 6)) == ["t.py::b"]
    assert reach.tests(path, (1, 1)) == ["t.py::a", "t.py::b"]  # an import's line
    assert reach.tests(path, (8, 9)) == []
