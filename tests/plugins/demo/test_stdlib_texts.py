"""Texts and tasks of installed code: what is prose and what is code, halves without a common text, labels."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from emberge import Artifact, DataEntry, DataRef, Preflight, Problem, Workspace
from emberge.data import load_datasets
from emberge_data import JsonLines
from emberge_demo.stdlib_tasks import StdlibTasks, labelled_words
from emberge_demo.stdlib_texts import StdlibTexts


class Place:
    """As much of a workspace as the steps ask for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def progress(self, *_: object) -> None:
        """Go on."""


class Look:
    """As much of a preflight as the steps ask for."""

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, option)


def run(step: StdlibTexts | StdlibTasks, folder: Path) -> Artifact:
    return step.run(cast("Workspace", Place(folder)))


def problems(step: StdlibTexts | StdlibTasks) -> list[tuple[str, str]]:
    found = step.check(cast("Preflight", Look()))
    return [(str(problem.where), problem.message) for problem in found]


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    run(StdlibTexts(packages=("email", "json"), held_out=0.3), folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    run(StdlibTasks(rows=200, words=24, classes=5), folder)
    return folder


def test_a_training_and_its_development_read_the_sets_from_the_catalogue(texts: Path) -> None:
    for split in ("train", "dev"):
        entry = DataEntry(path=DataRef(str(texts)), split=split)
        found = load_datasets([entry], readers=[JsonLines()], resolve=lambda ref: Path(ref.text))
        assert [(one.info.name, one.info.task) for one in found] == [
            ("prose", "text"),
            ("code", "text"),
        ]
        for one in found:
            assert [one[i].anchor for i in range(len(one))] == [
                row["text"] for row in rows(texts / f"{split}/{one.info.name}.jsonl.gz")
            ]


def test_code_has_no_docstring_and_prose_has_them(texts: Path) -> None:
    prose = "\n\n".join(row["text"] for row in rows(texts / "train/prose.jsonl.gz"))
    assert "Create a MIMEText object" in prose or "JSON" in prose
    for row in rows(texts / "train/code.jsonl.gz"):
        for node in ast.walk(ast.parse(row["text"])):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                assert ast.get_docstring(node) is None


def test_no_module_is_in_both_halves(texts: Path) -> None:
    train, dev = (
        {row["text"] for row in rows(texts / f"{half}/code.jsonl.gz")} for half in ("train", "dev")
    )
    assert train
    assert dev
    assert not train & dev


def test_the_same_packages_give_the_same_bytes(texts: Path, tmp_path: Path) -> None:
    run(StdlibTexts(packages=("email", "json"), held_out=0.3), tmp_path)
    for path in texts.rglob("*.gz"):
        assert path.read_bytes() == (tmp_path / path.relative_to(texts)).read_bytes()


def test_a_package_that_is_not_there_is_refused_with_the_fix() -> None:
    ((where, message),) = problems(StdlibTexts(packages=("acme_missing",)))
    assert where == "packages"
    assert "pip install acme_missing" in message


def test_words_are_labelled_by_themselves_and_their_neighbours() -> None:
    code = "def find(a, b=1):\n    from os import path\n    return a.join(b, key='x') + path"
    assert labelled_words(code) == [
        *(("def", "keyword"), ("find", "definition"), ("(", "operator"), ("a", "name")),
        *((",", "operator"), ("b", "argument"), ("=", "operator"), ("1", "number")),
        *((")", "operator"), (":", "operator"), ("from", "keyword"), ("os", "name")),
        *(("import", "keyword"), ("path", "import"), ("return", "keyword"), ("a", "name")),
        *((".", "operator"), ("join", "method"), ("(", "operator"), ("b", "name")),
        *((",", "operator"), ("key", "argument"), ("=", "operator"), ("'x'", "text")),
        *((")", "operator"), ("+", "operator"), ("path", "name")),
    ]


@pytest.mark.slow
def test_every_set_of_a_task_has_every_label_and_no_row_of_another(tasks: Path) -> None:
    for task, text in (("names", "words"), ("modules", "text")):
        labels, seen = [], []
        for half in ("train", "dev", "test"):
            found = list(rows(tasks / task / f"{half}.jsonl.gz"))
            assert 0 < len(found) <= (200 if half == "train" else 100)
            seen.append({str(row[text]) for row in found})
            own = [row["labels"] if task == "names" else [row["label"]] for row in found]
            labels.append({label for row in own for label in row})
        assert labels[1] <= labels[0]
        assert labels[2] <= labels[0]
        if task == "modules":
            assert labels[0] == labels[1] == labels[2]
            assert len(labels[0]) == 5
            assert not seen[0] & seen[2]
