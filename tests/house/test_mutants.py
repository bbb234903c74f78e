"""The faults of `make mutants` are planted where they mean something, and tried by tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mutants import draw_mutants, mutants, room_tests
from tests.support.places import ROOT


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in mutants(Path("a.py"), source)]


def test_operators_numbers_checks_and_forgotten_calls_are_planted_not_messages() -> None:
    source = "def f(a):\n    warn('they are odd', a)\n    return zip(a, strict=True)\n"
    assert changes(source) == [("warn('they are odd', a)", "pass")]
    source = "def save(x):\n    sync(x)\n    return x + 1\n"
    assert changes(source) == [
        ("sync(x)", "pass"),
        ("sync(x)", "sync(None)"),
        ("return x + 1", "return x - 1"),
        ("return x + 1", "return x + 2"),
    ]
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
        "@dataclass(frozen=True)\nclass A:\n    x: Literal['a', 'b']\n",
        "def f(x: int | None) -> tuple[int, str]:\n    ...\n",
        'def f(x):\n    return f"{x} is odd"\n',
    ],
)
def test_what_no_test_should_find_is_not_planted(source: str) -> None:
    assert changes(source) == []


def test_a_larger_sample_has_all_of_a_smaller_one_and_all_are_tried_by_their_room() -> None:
    paths = [Path("core/emberge/seeds.py"), Path("core/emberge/wording.py")]
    few, more = ([one.code for one in draw_mutants(ROOT, paths, count, seed=0)] for count in (3, 6))
    assert few == more[:3]
    assert [one.code for one in draw_mutants(ROOT, paths, 3, seed=5)] != few
    for source, tests in (
        ("core/emberge/files/atomic.py", "tests/core/files"),
        ("plugins/emberge_moe/hooks.py", "tests/plugins/moe"),
    ):
        found = room_tests(ROOT, Path(source))
        assert str(found).startswith(tests)
        assert (ROOT / found).exists()
