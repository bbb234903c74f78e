"""Scores of weightings from the members' embeddings, against mteb's and against mixed embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emberge import DataRef
from emberge_encoder import TextEncoder
from emberge_mteb import EvalEntry, Mteb
from emberge_weights.members import SetEmbedder, SideVectors
from emberge_weights.set_scores import first_documents, score_set
from emberge_weights.weight_sets import SetEntry, WeightSet, read_sets

from tests.plugins.weights.places import write_sets
from tests.support.bench import Bench, model_at

LABELLED = ("asked", "likeness")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def sides_of(sets: list[WeightSet], folder: Path, bench: Bench) -> list[SideVectors]:
    embedder = SetEmbedder(sets=sets, backbone=TextEncoder(), max_length=None, workspace=bench)
    return embedder.member(model_at(folder))


def read(catalogue: Path, bench: Bench, **options: object) -> list[WeightSet]:
    entry = SetEntry(path=DataRef(str(catalogue)), **options)  # type: ignore[arg-type]
    return list(read_sets([entry], bench.data, bench.readers))


def test_a_member_alone_has_the_score_that_mteb_gives_it(
    catalogue: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    sets = read(catalogue, bench, only=LABELLED)
    members = [sides_of(sets, folder, bench) for folder in berts]
    evaluator = Mteb(
        data=(EvalEntry(path=DataRef(str(catalogue)), only=LABELLED, split="dev"),),
        backbone=TextEncoder(),
    )
    plan = evaluator.plan(bench)
    for number, folder in enumerate(berts):
        theirs = {s.task.name: s.score for s in evaluator.evaluate(model_at(folder), plan, bench)}
        for place, one in enumerate(sets):
            sides = [member[place] for member in members]
            ours = score_set(one, sides, np.eye(3), np.eye(3)).contributions()[number].mean()
            # mteb rounds to five digits; two similarities of equal float32 may be ranked either way.
            assert ours == pytest.approx(theirs[one.name], abs=2e-4), one.name


def test_first_documents_are_found_beyond_those_that_are_searched_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emberge_weights.set_scores.SEARCHED", 7)
    monkeypatch.setattr("emberge_weights.set_scores.DEPTH", 5)
    rng = np.random.default_rng(0)
    texts = [f"text {number}" for number in range(20)]
    wanted = WeightSet("set", "mean", texts[:3], texts)
    vectors = rng.standard_normal((20, 4)).astype(np.float32)
    queries = rng.standard_normal((3, 4)).astype(np.float32)
    found = first_documents(wanted, [SideVectors(queries, vectors)], np.ones(1))
    cosines = queries @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    np.testing.assert_array_equal(found, np.argsort(-cosines, axis=1)[:, :5])
    assert (found >= 14).any()


def test_equal_cosines_are_ranked_as_in_the_mean_over_their_orders() -> None:
    texts = [f"text {number}" for number in range(24)]
    relevant = [{0: 1}, {0: 1, 3: 2}]
    one = WeightSet("set", "mean", texts[:2], texts, relevant)
    vectors = np.ones((24, 4), np.float32)
    vectors[12:, 0] = -1  # the others come last
    sides = SideVectors(np.ones((2, 4), np.float32), vectors)
    discounts = 1 / np.log2(np.arange(2, 12))
    mean = discounts.sum() / 12
    found = score_set(one, [sides], np.ones((1, 1)), np.ones((1, 1))).values[0]
    assert found == pytest.approx([mean, 3 * mean / (2 + discounts[1])], abs=1e-5)
