"""The table of `make mutants` names what there is, and its faults are planted where they mean something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mutants.plant import Mutant, draw_mutants, mutants
from tests.support.mutants.reach import Reach
from tests.support.places import ROOT


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in mutants(Path("a.py"), source)]


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
    paths = [Path("core/emberge/seeds.py"), Path("core/emberge/wording.py")]
    few, more = (
        {mutant.code for mutant in draw_mutants(ROOT, paths, count, seed=0)} for count in (3, 6)
    )
    assert len(few) == 3
    assert few < more
    assert {mutant.code for mutant in draw_mutants(ROOT, paths, 3, seed=5)} != few


def test_tests_are_those_that_reach_the_lines_and_all_of_the_room_where_an_import_does() -> None:
    code = "LEAST = 2\n\n\ndef f():\n    return LEAST\n\n\ndef g():\n    return 1\n"
    path = Path("plugins/emberge_x/a.py")
    own, other, far = "tests/plugins/x/test_a.py", "tests/core/test_b.py", "tests/core/test_c.py"
    reach = Reach({str(path): {"1": [other], "5": [far, own]}}, {own: 2.0, other: 1.0, far: 500.0})

    def tried(line: int) -> list[str]:
        return reach.files_of(Mutant(path, (line, line), "", "", code))

    assert tried(1) == [own, other]  # with the third they would take too long
    assert tried(5) == [own]
    assert tried(9) == [own]  # no test runs it: the room's own may read it in another way
