"""Documents embedded by one model and queries by another, and what of a gain that keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from emberge import DataError, DataRef, FileRef, Model, ModelRef, Preflight, Problem, TaskScore
from emberge.contracts import KeptIndex
from emberge.encoding import TextEmbedder
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_mteb.evaluator import Mteb
from emberge_mteb.local_sets import EvalEntry
from safetensors.numpy import save_file

from tests.support import tiny
from tests.support.bench import BACKBONE, Bench, model_at, write_catalogue


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), ("retrieval", "reranking", "sts"))


def mteb(catalogue: Path, *indexes: KeptIndex, only: tuple[str, ...] = ("retrieval",)) -> Mteb:
    entry = EvalEntry(path=DataRef(str(catalogue)), only=only)
    return Mteb(data=(entry,), backbone=BACKBONE, documents_of=indexes)


def scored(evaluator: Mteb, model: Model, bench: Bench) -> dict[str, TaskScore]:
    plan = evaluator.plan(bench)
    return {score.task.name: score for score in evaluator.evaluate(model, plan, bench)}


def two(bert: Path, berts: list[Path], tmp_path: Path) -> Bench:
    """A bench with an old and a new model."""
    bench = Bench(tmp_path)
    bench.many = {"$old": [model_at(bert, "old")], "$new": [model_at(berts[0], "new")]}
    return bench


OLD = KeptIndex(model=ModelRef("$old"))


def ndcg(catalogue: Path, documents: np.ndarray[Any, Any], queries: np.ndarray[Any, Any]) -> float:
    """nDCG@10 of the set's twelve queries, of which each has one document, by a few lines of numpy."""
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, documents)]
    scores = unit[0] @ unit[1].T
    places = [int((row > row[i]).sum()) for i, row in enumerate(scores)]
    return float(np.mean([1 / np.log2(place + 2) if place < 10 else 0.0 for place in places]))


def embedded(catalogue: Path, folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    import gzip

    embedder = TextEmbedder(BACKBONE.load(folder, device="cpu", dtype="float32"))
    found = {}
    for side in ("corpus", "queries"):
        with gzip.open(catalogue.parent / "eval" / "retrieval" / f"{side}.jsonl.gz", "rt") as file:
            texts = [json.loads(line)["text"] for line in file]
        found[side] = embedder.embed(texts)
    return found


def test_documents_are_the_old_models_and_queries_the_new_ones(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    found = scored(mteb(catalogue, OLD), bench.many["$new"][0], bench)
    assert list(found) == ["retrieval", "retrieval on old"]
    old, new = embedded(catalogue, bert), embedded(catalogue, berts[0])
    exact = {"rel": 0, "abs": 5.01e-6}  # mteb rounds to five digits
    assert found["retrieval"].score == pytest.approx(
        ndcg(catalogue, new["corpus"], new["queries"]), **exact
    )
    assert found["retrieval on old"].score == pytest.approx(
        ndcg(catalogue, old["corpus"], new["queries"]), **exact
    )
    units = found["retrieval on old"].units
    assert units is not None
    assert units.unit == "query"


def test_reranking_has_an_index_too_and_sts_none(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    evaluator = mteb(catalogue, OLD, only=("retrieval", "reranking"))
    found = scored(evaluator, bench.many["$new"][0], bench)
    assert found["reranking on old"].units != found["reranking"].units
    (problem,) = problems(mteb(catalogue, OLD, only=("retrieval", "sts")))
    assert problem.startswith("documents_of: 'sts' is sts")


def test_a_model_on_its_own_index_is_itself(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    found = scored(mteb(catalogue, OLD), bench.many["$old"][0], bench)
    assert found["retrieval on old"].units == found["retrieval"].units


def test_the_other_model_is_part_of_the_scores_fingerprint(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    own, first = mteb(catalogue, OLD).plan(bench)
    (alone,) = mteb(catalogue).plan(bench)
    assert own.fingerprint == alone.fingerprint  # a score without an index serves both
    bench.many["$old"] = [model_at(berts[1], "old")]
    _, second = mteb(catalogue, OLD).plan(bench)
    _, anew = mteb(catalogue, KeptIndex(model=ModelRef("$old"), anew=3)).plan(bench)
    assert len({own.fingerprint, first.fingerprint, second.fingerprint, anew.fingerprint}) == 4


def bridge(folder: Path, source: Model, target: Model, matrix: np.ndarray[Any, Any]) -> FileRef:
    folder.mkdir()
    header = {
        "source": {"fingerprint": source.fingerprint, "dimension": len(matrix)},
        "target": {
            "fingerprint": target.fingerprint,
            "dimension": matrix.shape[1],
            "normalised": True,
        },
    }
    save_file(
        {"matrix": matrix, "offset": np.zeros(matrix.shape[1])},
        folder / "translation.safetensors",
        metadata={"translation": json.dumps(header)},
    )
    return FileRef(str(folder))


def test_a_translated_index_is_turned_by_the_translation_that_leads_to_the_model(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    (old,), (new,) = bench.many["$old"], bench.many["$new"]
    third = model_at(berts[1], "third")
    rows = embedded(catalogue, bert)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0]
    index = KeptIndex(
        model=ModelRef("$old"),
        translations=(
            bridge(tmp_path / "third", old, third, np.eye(32)),
            bridge(tmp_path / "new", old, new, turn),
        ),
        name="turned",
    )
    found = scored(mteb(catalogue, index), new, bench)
    queries = embedded(catalogue, berts[0])["queries"]
    assert found["retrieval on turned"].score == pytest.approx(
        ndcg(catalogue, rows["corpus"] @ turn, queries), rel=0, abs=5.01e-6
    )
    stranger = model_at(berts[2], "stranger")
    with pytest.raises(DataError, match="stranger"):
        scored(mteb(catalogue, index), stranger, bench)


def test_translations_between_versions_are_applied_one_after_the_other(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    """Of a chain and a direct translation the direct one is taken, in whatever order they are named."""
    bench = two(bert, berts, tmp_path)
    (old,), (new,) = bench.many["$old"], bench.many["$new"]
    between = model_at(berts[1], "between")
    draw = np.random.default_rng(0)
    first, second, direct = (np.linalg.qr(draw.normal(size=(32, 32)))[0] for _ in range(3))
    chain = (
        bridge(tmp_path / "from_between", between, new, second),
        bridge(tmp_path / "to_between", old, between, first),
    )
    every = (*chain, bridge(tmp_path / "direct", old, new, direct))
    rows, queries = embedded(catalogue, bert), embedded(catalogue, berts[0])["queries"]
    for translations, matrix in ((chain, first @ second), (every, direct)):
        index = KeptIndex(model=ModelRef("$old"), translations=translations, name="moved")
        found = scored(mteb(catalogue, index), new, bench)
        wanted = ndcg(catalogue, rows["corpus"] @ matrix, queries)
        assert found["retrieval on moved"].score == pytest.approx(wanted, rel=0, abs=5.01e-6)


def test_with_all_hits_anew_the_old_index_scores_as_the_new_one(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    """Of 30 documents 30 are embedded anew; with 4 the first four places have the new model's order."""
    bench = two(bert, berts, tmp_path)
    few, all_ = (KeptIndex(model=ModelRef("$old"), anew=count) for count in (4, 30))
    found = scored(mteb(catalogue, few, all_), bench.many["$new"][0], bench)
    assert found["retrieval on old, 30 anew"].units == found["retrieval"].units
    old, new = embedded(catalogue, bert), embedded(catalogue, berts[0])
    mixed = new["queries"] @ old["corpus"].T  # unit vectors
    own = new["queries"] @ new["corpus"].T
    gains = []
    for i in range(len(mixed)):
        order = list(np.argsort(-mixed[i]))
        order = [*sorted(order[:4], key=lambda j: -own[i, j]), *order[4:]]
        place = order.index(i)
        gains.append(1 / np.log2(place + 2) if place < 10 else 0.0)
    assert found["retrieval on old, 4 anew"].score == pytest.approx(
        float(np.mean(gains)), rel=0, abs=5.01e-6
    )


def test_another_dimension_needs_a_translation(catalogue: Path, bert: Path, tmp_path: Path) -> None:
    narrow = tiny.checkpoint(tmp_path / "narrow", hidden_size=16)
    bench = Bench(tmp_path)
    bench.many = {"$old": [model_at(narrow, "old")], "$new": [model_at(bert, "new")]}
    look = Look({"$old": narrow})
    (fault,) = mteb(catalogue, OLD).check_model(bert, cast("Preflight", look))
    assert "translations" in fault
    assert "16" in fault
    with pytest.raises(DataError, match="translations"):
        scored(mteb(catalogue, OLD), bench.many["$new"][0], bench)
    index = KeptIndex(
        model=ModelRef("$old"),
        translations=(
            bridge(tmp_path / "b", *bench.many["$old"], *bench.many["$new"], np.eye(16, 32)),
        ),
    )
    assert not list(mteb(catalogue, index).check_model(bert, cast("Preflight", look)))
    found = scored(mteb(catalogue, index), bench.many["$new"][0], bench)
    assert "retrieval on old by b" in found


class Look:
    """A preflight of models in folders."""

    deep = False
    readers = ()

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def model(self, reference: ModelRef) -> Path | None:
        return self._folders.get(reference.text)

    def whole_model(self, reference: ModelRef) -> Path | None:
        return self.model(reference)

    def adapter(self, reference: ModelRef) -> Path | None:
        return None

    def data(self, reference: DataRef) -> Path:
        return Path(reference.text)

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, option)

    def warning(self, message: str, option: str = "") -> Problem:
        return Problem(message, option, "warning")

    def where(self, option: str) -> str:
        return option

    def note(self, *_: object) -> None:
        """Go on."""


def problems(evaluator: Mteb) -> Iterator[str]:
    found = evaluator.check(cast("Preflight", Look({})))
    errors = (problem for problem in found if problem.severity == "error")
    return (f"{problem.where}: {problem.message}" for problem in errors)


@pytest.mark.parametrize(
    ("indexes", "word"),
    [
        ((OLD, OLD), "name"),
        ((KeptIndex(model=ModelRef("$old"), anew=-1),), "anew"),
    ],
)
def test_indexes_that_mean_nothing_are_refused(
    catalogue: Path, indexes: tuple[KeptIndex, ...], word: str
) -> None:
    (problem,) = problems(mteb(catalogue, *indexes))
    assert problem.startswith("documents_of: ")
    assert word in problem


def test_mtebs_own_tasks_without_documents_are_refused() -> None:
    evaluator = Mteb(tasks=("STS12", "NFCorpus"), backbone=BACKBONE, documents_of=(OLD,))
    problem = list(problems(evaluator))[-1]
    assert problem.startswith("documents_of: 'STS12'")


def test_an_evaluation_shows_old_new_and_new_on_old_side_by_side(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = two(bert, berts, tmp_path)
    entries = tuple(EvaluatedModel(model=ModelRef(name)) for name in ("$old", "$new"))
    index = KeptIndex(model=ModelRef("$old"), anew=4)
    evaluator = mteb(catalogue, OLD, index, only=("retrieval", "reranking"))
    Evaluate(models=entries, evaluators=(evaluator,)).run(bench)
    result = json.loads((bench.folder / "scores.json").read_text())
    names = [model["name"] for model in result["models"]]
    assert names == ["old", "new", "new on old", "new on old, 4 anew"]
    assert [task["name"] for task in result["tasks"]] == ["retrieval", "reranking"]
    kept = {(one["model"], one["on"]): one for one in result["gains_kept"]}
    for model in ("new on old", "new on old, 4 anew"):
        for on in ("task", "retrieval"):
            one = kept[model, on]
            assert (one["new"], one["old"]) == ("new", "old")
            assert one["gain_low"] <= one["gain"] <= one["gain_high"]
    shown = (bench.folder / "scores.md").read_text()
    assert "| new on old | " in shown
