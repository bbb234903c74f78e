"""The corpus of installed code: what is taken of a function, how modules are split, the same bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from emberge import Artifact, DataEntry, DataError, DataRef, Problem
from emberge.data import load_catalogue, load_datasets
from emberge_data import EvalSource, JsonLines, RetrievalData, load_eval_set, pick_eval_sets
from emberge_demo.installed_code import Definition, read_definitions
from emberge_demo.stdlib_corpus import StdlibCorpus, select_definitions

from tests.support.bench import Bench
from tests.support.glance import Glance

SOURCE = '''\
"""A module's own docstring is no function's."""
import functools


@functools.cache
def first(
    a,  # the first
):
    """Return the   first
    of all things.

    More that is not asked for.
    """

    # A comment that stays.
    text = """
left margin
"""
    return text, a


class Thing:
    """Classes are not taken."""

    class Inner:
        def method(self):
            """Do what the inner thing does."""
            def nested():
                """Nested functions are part of the outer one."""
                return 1
            return nested

    async def later(self): """Wait for the thing to come."""; return 2

    def empty(self):
        """Nothing stands here to be found."""
        raise NotImplementedError

    def undocumented(self):
        return 3


if True:
    def branch():
        "Taken although it stands in a branch.\\f"; x = 1
        return x
else:
    def branch():
        """Taken although it stands in another branch."""
        return 5
'''


def run(step: StdlibCorpus, root: Path) -> Artifact:
    """Write the corpus into the folder `out` in `root`."""
    return step.run(Bench(root))


def problems(**options: Any) -> list[Problem]:
    context: Any = Glance()
    return list(StdlibCorpus(**options).check(context))


def package(root: Path, name: str, modules: dict[str, str]) -> Path:
    for module, text in modules.items():
        path = root / name / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / name / "__init__.py").touch()
    return root / name


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages can be imported."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def found(folder: Path, name: str = "acme_code") -> dict[str, Definition]:
    return {f"{d.name} {d.query}": d for d in read_definitions(name, folder)}


def test_functions_have_their_first_paragraph_and_their_code_without_it(tmp_path: Path) -> None:
    taken = found(package(tmp_path, "acme_code", {"code": SOURCE}))
    assert {name: one.document for name, one in taken.items()} == {
        "first Return the first of all things.": "@functools.cache\ndef first(\n    a,  # the first\n):\n"
        '    # A comment that stays.\n    text = """\nleft margin\n"""\n    return text, a',
        "Thing.Inner.method Do what the inner thing does.": "def method(self):\n    def nested():\n"
        '        """Nested functions are part of the outer one."""\n        return 1\n    return nested',
        "Thing.later Wait for the thing to come.": "",
        "Thing.empty Nothing stands here to be found.": "",
        "branch Taken although it stands in a branch.": "",
        "branch Taken although it stands in another branch.": "def branch():\n    return 5",
    }


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    text = "x = 1\n\f\ndef f():\r\n    '''Täglich 🦆 gemacht wird das.'''\r\n    return '\x1c\u2028'\r\n"
    folder = tmp_path / "acme_code"
    folder.mkdir()
    (folder / "code.py").write_bytes(text.encode())
    (definition,) = found(folder).values()
    assert definition.query == "Täglich 🦆 gemacht wird das."
    assert definition.document == "def f():\n    return '\x1c\u2028'"


def test_files_of_tests_copies_and_files_that_do_not_parse_are_skipped(tmp_path: Path) -> None:
    good = 'def f():\n    """Do the thing that is asked."""\n    return 1\n'
    modules = {
        "good": good,
        "test_good": good,
        "conftest": good,
        "tests/good": good,
        "_vendor/other": good,
        "sub/good": good,
        "broken": "def f(:",
    }
    folder = package(tmp_path, "acme_code", modules)
    names = [d.id for d in read_definitions("acme_code", folder)]
    assert names == ["acme_code.good.f", "acme_code.sub.good.f"]


def module(package_name: str, number: int, functions: int = 6) -> str:
    return "\n".join(
        f'def f{number}_{i}():\n    """Compute number {i} of module {number} in {package_name}."""\n'
        f'    return "{package_name} {number} {i}"\n'
        for i in range(functions)
    )


@pytest.fixture
def two(installed: Path) -> Path:
    for name in ("acme_alpha", "acme_beta"):
        package(installed, name, {f"m{n}": module(name, n) for n in range(40)})
    return installed


ALPHA = StdlibCorpus(packages=("acme_alpha",), out_of_domain=("acme_beta",))


def texts(folder: Path) -> tuple[set[str], set[str], set[str]]:
    """Queries trained on, searched in-domain and out-of-domain."""
    entry = DataEntry(path=DataRef(str(folder)))
    (train,) = load_datasets([entry], readers=[JsonLines()], resolve=lambda r: Path(r.text))
    halves = [
        load_eval_set(s, readers=[JsonLines()])
        for s in pick_eval_sets(EvalSource(path=DataRef(str(folder))))
    ]
    assert all(isinstance(half, RetrievalData) for half in halves)
    queries = [set(cast("RetrievalData", half).queries.values()) for half in halves]
    return {train[i].anchor for i in range(len(train))}, queries[0], queries[1]


def test_the_corpus_is_a_catalogue_with_sets_in_and_out_of_domain(
    two: Path, tmp_path: Path
) -> None:
    artifact = run(ALPHA, tmp_path)
    catalogue = load_catalogue(tmp_path / "out")
    assert [(s.name, s.task, s.prompt) for s in catalogue.train] == [
        ("acme_alpha", "retrieval", None)
    ]
    sets = pick_eval_sets(EvalSource(path=DataRef(str(tmp_path / "out"))))
    assert [(s.name, s.domain, s.symmetric) for s in sets] == [
        ("acme_alpha", "in", False),
        ("acme_beta", "out", False),
    ]
    train, inside, outside = texts(tmp_path / "out")
    assert artifact.kind == "data"
    assert artifact.size == len(train)
    assert 0 < len(inside) < 240 - len(train)
    assert len(outside) == 240
    for one in sets:
        data = load_eval_set(one, readers=[JsonLines()])
        assert isinstance(data, RetrievalData)
        for query, grades in data.relevant.items():
            ((document, grade),) = grades.items()
            number = data.queries[query].split()[2]
            assert data.corpus[document].rstrip('"').endswith(f" {number}")
            assert grade == 1
            assert query not in data.corpus


def test_a_smaller_limit_is_a_part_of_a_larger_one(two: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    run(replace(ALPHA, limit=20, test_queries=10), tmp_path / "small")
    run(replace(ALPHA, limit=40, test_queries=30), tmp_path / "large")
    small, large = texts(tmp_path / "small/out"), texts(tmp_path / "large/out")
    assert [len(s) for s in small] == [20, 10, 10]
    assert all(s < t for s, t in zip(small, large, strict=True))


def filtered(installed: Path, functions: Sequence[tuple[str, str]]) -> list[str]:
    text = "\n".join(
        f"def f{i}():\n    {json.dumps(query)}\n    {body}\n"
        for i, (query, body) in enumerate(functions)
    )
    folder = package(installed, "acme_filter", {"code": text})
    taken = read_definitions("acme_filter", folder)
    return [d.name for d in select_definitions(taken, set())]


def test_queries_of_few_words_and_repeated_functions_are_left_out(installed: Path) -> None:
    functions = [
        ("Do the thing.", "return 1"),
        ("Too short.", "return 2"),
        (">>> f2() + f2() + 1", "return 3"),
        ("f3(a, b) -> the sum of both", "return 4"),
        ("do  THE thing.", "return 5"),
        ("It has no body at all.", "..."),
        ("Do another thing.", "return 6"),
    ]
    assert filtered(installed, functions) == ["f0", "f6"]


def test_long_documents_are_cut_at_the_end_of_a_line(installed: Path) -> None:
    body = "\n    ".join(f"x{i} = {i}" for i in range(1000))
    folder = package(
        installed, "acme_long", {"code": f'def f():\n    """Set very many names."""\n    {body}\n'}
    )
    (taken,) = select_definitions(read_definitions("acme_long", folder), set())
    assert len(taken.document) <= 2000
    assert taken.document.splitlines()[-1] == "    x146 = 146"


def test_a_package_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(packages=("acme_absent",), out_of_domain=())
    assert problem == Problem(
        "package 'acme_absent' is not installed (or is one file); install it, or leave it out",
        "packages",
    )
    with pytest.raises(DataError, match="package 'acme_absent' is not installed"):
        run(StdlibCorpus(packages=("acme_absent",)), tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"packages": ()}, "names nothing to train on"),
        ({"out_of_domain": ("stdlib",)}, "'stdlib' is named twice"),
    ],
)
def test_options_that_make_no_corpus_are_refused(options: dict[str, Any], said: str) -> None:
    found = problems(**{"out_of_domain": (), **options})
    assert [said in problem.message for problem in found] == [True]


def test_the_result_depends_on_the_versions_of_python_and_the_packages() -> None:
    identity = StdlibCorpus(out_of_domain=("numpy", "acme_absent")).identity()
    assert ".".join(str(part) for part in sys.version_info[:3]) in identity
    assert f"numpy {__import__('numpy').__version__}" in identity
    assert "acme_absent is missing" in identity
