"""Queries from the structure of documents: each leads to its passage, and no passage has its query's text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError, DataRef
from emberge_data.steps.generate_step import GenerateQueries
from emberge_data.steps.structure_queries import is_within

from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.handbook import write_handbook

Rows = list[dict[str, Any]]
PARTS = ("train", "dev", "test")
BODY = "It takes the hose from its hook and lays it along the wall of the yard without a knot."


def run(root: Path, documents: Path, **options: Any) -> Bench:
    bench = Bench(root / "run", id="generated", seed=options.pop("seed", 0))
    GenerateQueries(documents=DataRef(str(documents)), **options).run(bench)
    return bench


def rows(bench: Bench, name: str) -> Rows:
    path = bench.folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def queries(bench: Bench) -> dict[str, str]:
    """Each query of all parts, with its passage."""
    return {row["query"]: row["pos"][0] for part in PARTS for row in rows(bench, part)}


def generate(tmp_path: Path, files: Mapping[str, str], **options: Any) -> dict[str, str]:
    folder = tmp_path / "docs"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return queries(run(tmp_path, folder, **{"dev": 0, "test": 0, **options}))


PAGES: list[tuple[tuple[str, ...], dict[str, str], dict[str, str]]] = [
    (
        ("title", "heading"),
        {
            "a.md": f"# Care of the garden\n\nThe care of the garden is work. {BODY}\n\n## Watering in the "
            f"summer\n\nThe pump runs. {BODY[::-1]}\n"
        },
        {
            "Care of the garden": f"The is work. {BODY}",
            "Watering in the summer": f"The pump runs. {BODY[::-1]}",
        },
    ),
    (  # a short heading stands behind the title
        ("heading",),
        {"a.md": f"# The garden\n\nText of it. {BODY}\n\n## Usage\n\nIt is easy. {BODY[::-1]}\n"},
        {"The garden Usage": f"The garden It is easy. {BODY[::-1]}"},
    ),
    (
        ("sentence",),
        {"a.txt": f"The hose is kept in the shed. {BODY}"},
        {"The hose is kept in the shed.": BODY},
    ),
]


@pytest.mark.parametrize(("kinds", "files", "expected"), PAGES)
def test_queries_lead_to_their_text_and_are_taken_out_of_it(
    tmp_path: Path, kinds: tuple[str, ...], files: dict[str, str], expected: dict[str, str]
) -> None:
    assert generate(tmp_path, files, kinds=kinds) == expected


def test_docstrings_lead_to_their_code_without_them(tmp_path: Path) -> None:
    code = (
        'def f(a, b):\n    """Lay the hose along\n    the wall.\n\n    Slowly.\n    """\n'
        "    total = a + b\n    for number in range(total):\n        print(number, total, a, b)\n"
    )
    found = generate(tmp_path, {"m.py": code})
    (query,) = found
    assert query == "Lay the hose along the wall."
    assert "total = a + b" in found[query]
    assert "Slowly" in found[query]
    assert "hose" not in found[query]


def test_a_query_of_several_passages_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge_data.steps.generate_step._NEAR_COPY", 1.0)
    files = {
        f"{n}.md": f"# Title of page {n}\n\nWords {n}. {BODY}\n\n## What to do next\n\n{n} {BODY[::-1]}\n"
        for n in range(3)
    }
    assert "What to do next" not in generate(tmp_path, files)
    changes = json.loads((tmp_path / "run" / "out" / "changes.json").read_text())
    assert changes["train"]["notes"] == {"heading: stands for several passages": 3}


def test_no_passage_of_the_result_has_its_query(tmp_path: Path) -> None:
    bench = run(tmp_path, write_handbook(tmp_path / "docs", documents=40), per_passage=4)
    found = queries(bench)
    assert len(found) > 60
    assert [query for query, passage in found.items() if is_within(query, passage)] == []
    documents = {f"{row['title']} {row['text']}".strip() for row in rows(bench, "documents")}
    assert set(found.values()) <= documents


def test_parts_are_divided_by_document_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    folder = write_handbook(tmp_path / "docs", documents=40)
    bench = run(tmp_path / "a", folder, dev=0.2, test=0.25)
    owners = {
        f"{row['title']} {row['text']}".strip(): row["id"].partition("#")[0]
        for row in rows(bench, "documents")
    }
    parts = {part: {owners[row["pos"][0]] for row in rows(bench, part)} for part in PARTS}
    assert {part: len(names) for part, names in parts.items()} == {
        "train": 22,
        "dev": 8,
        "test": 10,
    }
    assert (
        not parts["train"] & parts["dev"]
        | parts["train"] & parts["test"]
        | parts["dev"] & parts["test"]
    )
    again, other = (
        run(tmp_path / "b", folder, dev=0.2, test=0.25),
        run(tmp_path / "c", folder, dev=0.2, test=0.25, seed=1),
    )
    for file in sorted(path.name for path in bench.folder.iterdir()):
        assert (again.folder / file).read_bytes() == (bench.folder / file).read_bytes()
    assert rows(other, "test") != rows(bench, "test")


def test_versions_of_a_document_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_handbook(tmp_path / "v1", documents=24)
    docs = tmp_path / "docs"
    for version, change in (("v1", ""), ("v2", " It was repaired last year.")):
        (docs / version).mkdir(parents=True)
        for page in sorted(folder.iterdir()):
            (docs / version / page.name).write_text(page.read_text() + change)
    bench = run(tmp_path / "a", docs)
    assert {row["id"].partition("/")[0] for row in rows(bench, "documents")} == {"v1"}
    (warning,) = bench.warnings
    assert warning.startswith("24 documents left out")
    monkeypatch.setattr("emberge_data.steps.generate_step._NEAR_COPY", 1.0)
    with pytest.raises(DataError, match="stands for several passages"):
        run(tmp_path / "b", docs, kinds=("sentence",))


def test_few_documents_are_divided_by_runs_of_passages_with_a_warning(tmp_path: Path) -> None:
    chapters = "".join(
        f"## Chapter number {n} of it\n\nOpening {n}. {n} {BODY}\n\n" for n in range(30)
    )
    (tmp_path / "a.md").write_text(f"# The book of it\n\n{chapters}")
    bench = run(tmp_path, tmp_path / "a.md")
    parts = {part: {row["query"] for row in rows(bench, part)} for part in PARTS}
    assert parts["test"]
    assert parts["dev"]
    headings = sorted(int(query.split()[2]) for query in parts["test"] if "Chapter" in query)
    assert [n // 5 for n in headings] == [headings[0] // 5] * len(headings)
    assert [warning for warning in bench.warnings if "runs of passages" in warning]


def test_documents_that_are_too_few_for_the_parts_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(BODY)
    with pytest.raises(DataError, match="dev: 0"):
        run(tmp_path, tmp_path / "a.txt")
    with pytest.raises(DataError, match="no query"):
        run(tmp_path, tmp_path / "a.txt", dev=0, test=0, kinds=("heading",))
    (tmp_path / "docs").mkdir()
    problems = list(GenerateQueries(documents=DataRef(str(tmp_path / "docs"))).check(Glance()))
    assert [(p.where, p.severity) for p in problems] == [("documents", "error")]


def test_a_check_shows_passages_and_names_what_is_left_out(tmp_path: Path) -> None:
    folder = write_handbook(tmp_path / "docs", documents=3)
    (folder / "b.bin").write_bytes(b"\x00")
    glance = Glance()
    (problem,) = GenerateQueries(documents=DataRef(str(folder))).check(glance)
    assert (problem.where, problem.severity) == ("documents", "warning")
    assert "b.bin" in problem.message
    assert "passages" in glance.notes["documents"][0]
