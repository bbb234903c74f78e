"""Evaluation sets of texts that every machine has: read as local sets are, elsewhere, the same each time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from emberge import Artifact, DataError, DataRef, Workspace
from emberge_data import EvalSource, JsonLines, RetrievalData, load_eval_set, pick_eval_sets
from emberge_evaluate import probe_sets
from emberge_evaluate.probe_sets import ProbeSets
from emberge_evaluate.probe_texts import read_licences, read_papers, read_places, read_things

# Those that are read in a moment; `mathematics` and `papers` read hundreds of files.
QUICK = ("licences", "cpp", "places", "things", "languages")


class Place:
    """As much of a workspace as the step asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warned: list[str] = []

    def progress(self, *_: object) -> None:
        """Go on."""

    def warn(self, message: str) -> None:
        self.warned.append(message)


def run(step: ProbeSets, folder: Path, names: Iterable[str] = QUICK) -> tuple[Artifact, Place]:
    """Make some of the sets."""
    place = Place(folder)
    sources = {name: probe_sets._SOURCES[name] for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_sets, "_SOURCES", sources)
        return step.run(cast("Workspace", place)), place


def pick(folder: Path) -> list[Any]:
    return pick_eval_sets(EvalSource(path=DataRef(str(folder))))


def rows(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, path.read_text("utf-8").splitlines())


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    run(ProbeSets(queries=30, documents=60), folder)
    return folder


def test_every_set_is_read_as_a_local_set_is_elsewhere_and_has_no_answer_in_a_query(
    probe: Path,
) -> None:
    found = pick(probe)
    assert [one.name for one in found] == [f"probe_{name}" for name in QUICK]
    assert {one.domain for one in found} == {"elsewhere"}
    for one in found[:-1]:
        data = load_eval_set(one, readers=[JsonLines()])
        assert isinstance(data, RetrievalData)
        assert len(data.queries) == 30
        assert all(set(judged) <= set(data.corpus) for judged in data.relevant.values())
        assert all(data.relevant[query] for query in data.queries)
        for query, judged in data.relevant.items():
            asked = data.queries[query].lower()
            assert asked not in {data.corpus[document].lower() for document in judged}
    folder = probe / "eval" / "languages"
    fitted, tested = (list(rows(folder / f"{half}.jsonl")) for half in ("train", "test"))
    assert not {row["text"] for row in fitted} & {row["text"] for row in tested}
    assert {row["label"] for row in tested} <= {row["label"] for row in fitted}


def test_a_smaller_probe_is_part_of_a_larger_one(probe: Path, tmp_path: Path) -> None:
    run(ProbeSets(queries=20, documents=60), tmp_path, ("places", "things"))
    for name in ("places", "things"):
        small, large = (
            {row["text"] for row in rows(folder / "eval" / name / "queries.jsonl")}
            for folder in (tmp_path, probe)
        )
        assert len(small) == 20
        assert small < large


def test_each_probe_set_has_the_texts_that_its_name_promises() -> None:
    assert ("Finland", "Helsinki") in read_places()
    assert "Singapore" not in dict(read_places())  # the answer would be in the query
    assert ("tea", "teacup without handle") in read_things()
    assert any("arrant" in first + rest for first, rest in read_licences())
    assert any("Sentence" in title for _, title in read_papers())


def test_texts_that_a_machine_lacks_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {**probe_sets._SOURCES, "places": (lambda: iter(()), ("tzdata",))}
    monkeypatch.setattr(probe_sets, "_SOURCES", sources)
    _, place = run(ProbeSets(queries=20), tmp_path / "a", ("places", "things"))
    assert len(place.warned) == 1
    assert "'places'" in place.warned[0]
    assert [one.name for one in pick(tmp_path / "a")] == ["probe_things"]
    with pytest.raises(DataError, match="no set of the probe has enough texts"):
        run(ProbeSets(queries=20), tmp_path / "b", ("places",))
