"""A whole search is scored like a model: what retrievers find, in the order of a reranker."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    EmbergeError,
    Evaluator,
    Model,
    ModelRef,
    RequirementError,
    TaskInfo,
    TaskScore,
    Workspace,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.contracts import SearchStack
from emberge.evaluating import read_scores
from emberge_encoder import CrossEncoder, Splade
from emberge_evaluate import Reranker, Retriever, Stack
from emberge_mteb import Mteb
from sentence_transformers import CrossEncoder as StockCrossEncoder
from sentence_transformers import SentenceTransformer, SparseEncoder

from tests.support import tiny
from tests.support.bench import Bench, model_at, write_catalogue
from tests.support.given_scores import TASKS

pytestmark = pytest.mark.filterwarnings("ignore:.*with so few:UserWarning")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"), ("retrieval", "sts"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "dense": tiny.checkpoint(root / "dense"),
        "other": tiny.checkpoint(root / "other", seed=4),
        "sparse": tiny.splade(root / "sparse"),
        "late": tiny.colbert(root / "late"),
        "reranker": tiny.reranker(root / "reranker"),
    }


@pytest.fixture(scope="module")
def tables(catalogue: Path, models: Mapping[str, Path]) -> Mapping[str, np.ndarray[Any, Any]]:
    """The library's own scores of twelve queries and thirty documents, by model."""
    folder = catalogue.parent / "eval" / "retrieval"
    sides = {}
    for side in ("queries", "corpus"):
        with gzip.open(folder / f"{side}.jsonl.gz", "rt") as file:
            sides[side] = [json.loads(line)["text"] for line in file]
    queries, documents = sides["queries"], sides["corpus"]
    dense = SentenceTransformer(str(models["dense"]), device="cpu")
    sparse = SparseEncoder(str(models["sparse"]), device="cpu")
    reranker = StockCrossEncoder(str(models["reranker"]), device="cpu")
    pairs = [(query, document) for query in queries for document in documents]
    vectors = [sparse.encode_query(queries), sparse.encode_document(documents)]
    return {
        "dense": np.asarray(dense.similarity(*(dense.encode(x) for x in (queries, documents)))),
        "sparse": np.asarray(sparse.similarity(*vectors).to_dense()),
        "reranker": np.asarray(reranker.predict(pairs)).reshape(len(queries), len(documents)),
    }


def sorted_rows(scores: np.ndarray[Any, Any]) -> list[int]:
    """The documents by falling scores, equal ones by name."""
    return sorted(range(len(scores)), key=lambda row: (-scores[row], f"d{row}"))


def gain(order: Sequence[int], right: int) -> float:
    """nDCG@10 of a query with one document."""
    place = list(order).index(right)
    return float(1 / np.log2(place + 2)) if place < 10 else 0.0


def evaluation(catalogue: Path, models: Sequence[Any], **options: Any) -> dict[str, Any]:
    mteb = {"data": [{"path": str(catalogue), "only": ["retrieval"]}]}
    return {"evaluate": {"models": list(models), "evaluators": {"mteb": mteb}, **options}}


def run(out: Path, **steps: Any) -> dict[str, float]:
    """The scores of each model on the one task."""
    results = run_recipe({"steps": steps}, out=out, quiet=True)
    scores = read_scores(results["scores"].path)
    return {model: scores.values[model]["retrieval"] for model in scores.models}


def problems(**steps: Any) -> list[str]:
    found = check_recipe(parse_recipe({"steps": steps}, load_plugins()), deep=False)
    return [problem.message for problem in found.errors]


@pytest.mark.parametrize("depth", [1, 4, 30])
def test_the_first_documents_are_in_the_rerankers_order(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
    depth: int,
) -> None:
    stack = {
        "stack": {
            "retriever": str(models["dense"]),
            "reranker": str(models["reranker"]),
            "depth": depth,
        }
    }
    scores = evaluation(catalogue, ["$search", str(models["dense"])])
    found = run(tmp_path, search=stack, scores=scores)
    expected = []
    for query, row in enumerate(tables["dense"]):
        order = sorted_rows(row)
        second = tables["reranker"][query]
        first = sorted(order[:depth], key=lambda document: -second[document])
        expected.append(gain([*first, *order[depth:]], query))
    assert found["search"] == pytest.approx(np.mean(expected), abs=1e-5)
    alone = [gain(sorted_rows(row), query) for query, row in enumerate(tables["dense"])]
    assert found["dense"] == pytest.approx(np.mean(alone), abs=1e-5)


def scaled(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray((row - row.min()) / (row.max() - row.min()))


def mixed(tables: Mapping[str, np.ndarray[Any, Any]], share: float, depth: int) -> float:
    """The score of a search whose first documents have a share of the reranker's scores."""
    gains = []
    for query, row in enumerate(tables["dense"]):
        order = sorted_rows(row)
        first = np.array(order[:depth])
        both = share * scaled(tables["reranker"][query][first]) + (1 - share) * scaled(row[first])
        gains.append(gain([*first[np.argsort(-both, kind="stable")], *order[depth:]], query))
    return float(np.mean(gains))


@pytest.mark.parametrize(("share", "depth"), [(0.3, 20), (0.7, 8)])
def test_a_reranker_with_a_share_counts_beside_the_retriever(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
    share: float,
    depth: int,
) -> None:
    parts = {"retriever": str(models["dense"]), "reranker": str(models["reranker"])}
    stack = {"stack": {**parts, "depth": depth, "reranker_share": share}}
    found = run(tmp_path, search=stack, scores=evaluation(catalogue, ["$search"]))
    assert found["search"] == pytest.approx(mixed(tables, share, depth), abs=1e-5)
    assert found["search"] != pytest.approx(mixed(tables, 1.0, depth), abs=1e-3)


def test_the_share_of_a_reranker_is_the_one_that_serves_development_data_best(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
) -> None:
    development = {"mteb": {"data": [{"path": str(catalogue), "only": ["retrieval"]}]}}
    stack = {
        "retriever": str(models["dense"]),
        "reranker": str(models["reranker"]),
        "depth": 20,
        "development": development,
        "find_share": True,
    }
    with pytest.warns(UserWarning, match="weights are found on the test half of retrieval"):
        found = run(tmp_path, search={"stack": stack}, scores=evaluation(catalogue, ["$search"]))
    expected = {tenths: mixed(tables, tenths / 10, 20) for tenths in range(11)}
    record = json.loads((tmp_path / "search" / "stack.json").read_text())
    best = max(expected.values())
    assert expected[round(10 * record["reranker_share"])] == pytest.approx(best, abs=1e-5)
    assert found["search"] == record["development_score"] == pytest.approx(best, abs=1e-5)


@dataclass(frozen=True, kw_only=True)
class ScoredBy(Evaluator):
    """Scores of searches by a function of them; it keeps the searches."""

    score: Callable[[SearchStack], float]
    asked: list[SearchStack] = field(default_factory=list, hash=False)

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return TASKS[:1]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        assert model.stack is not None
        self.asked.append(model.stack)
        yield from (TaskScore(task, self.score(model.stack)) for task in tasks)


def test_a_reranker_without_use_is_told(models: Mapping[str, Path], tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    artifact = Stack(
        retriever=Retriever(model=ModelRef(str(models["dense"]))),
        reranker=Reranker(model=ModelRef(str(models["reranker"]))),
        development=ScoredBy(score=lambda stack: 1 - stack.reranker_share),
        find_share=True,
    ).run(bench)
    assert artifact.details["stack"]["reranker_share"] == 0
    assert ["is best left out" in warning for warning in bench.warnings] == [True]


def test_of_shares_that_serve_alike_the_middle_one_is_taken(
    models: Mapping[str, Path], tmp_path: Path
) -> None:
    artifact = Stack(
        retriever=Retriever(model=ModelRef(str(models["dense"]))),
        reranker=Reranker(model=ModelRef(str(models["reranker"]))),
        development=ScoredBy(score=lambda stack: float(stack.reranker_share >= 0.2)),
        find_share=True,
    ).run(Bench(tmp_path))
    assert artifact.details["stack"]["reranker_share"] == 0.5


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"reranker_share": 0.5}, "reranker_share is for a search with a reranker"),
        ({"reranker": "reranker", "reranker_share": 0.0}, "the share 0 changes nothing"),
        ({"reranker": "reranker", "find_share": True}, "find_share"),
        (
            {"reranker": "reranker", "find_share": True, "reranker_share": 0.5, "development": {}},
            "is given, and found",
        ),
        ({"reranker": "reranker", "development": {}}, "`fusion: weighted` and `find_share`"),
    ],
)
def test_a_share_that_cannot_be_is_refused(
    catalogue: Path, models: Mapping[str, Path], options: dict[str, Any], fault: str
) -> None:
    stack: dict[str, Any] = {"retrievers": [str(models["dense"]), str(models["other"])], **options}
    if "reranker" in stack:
        stack["reranker"] = str(models["reranker"])
    if "development" in stack:
        data = [{"path": str(catalogue), "only": ["retrieval"]}]
        stack["development"] = {"mteb": {"data": data}}
    try:
        found = problems(search={"stack": stack})
    except EmbergeError as error:
        found = [str(error)]
    assert any(fault in problem for problem in found)


def fused(tables: Sequence[np.ndarray[Any, Any]], weights: Sequence[float], k: int) -> float:
    gains = []
    for query in range(len(tables[0])):
        total = np.zeros(tables[0].shape[1])
        for table, weight in zip(tables, weights or [1.0] * len(tables), strict=True):
            row = table[query]
            if weights:
                total += weight * (row - row.min()) / (row.max() - row.min())
            else:
                ranks = {document: rank for rank, document in enumerate(sorted_rows(row), 1)}
                total += [1 / (k + ranks[document]) for document in range(len(row))]
        gains.append(gain(sorted_rows(total), query))
    return float(np.mean(gains))


def test_lists_of_several_retrievers_are_fused(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
) -> None:
    retrievers = [str(models["dense"]), {"model": str(models["sparse"]), "backbone": "splade"}]
    weighted = {"fusion": "weighted", "weights": [0.3, 0.7]}
    found = run(
        tmp_path,
        ranks={"stack": {"retrievers": retrievers}},
        close={"stack": {"retrievers": retrievers, "k": 1}},
        weighted={"stack": {"retrievers": retrievers, **weighted}},
        scores=evaluation(catalogue, ["$ranks", "$close", "$weighted", retrievers[1]]),
    )
    both = [tables["dense"], tables["sparse"]]
    assert found["ranks"] == pytest.approx(fused(both, (), 60), abs=1e-5)
    assert found["close"] == pytest.approx(fused(both, (), 1), abs=1e-5)
    assert found["weighted"] == pytest.approx(fused(both, (0.3, 0.7), 0), abs=1e-5)
    alone = [gain(sorted_rows(row), query) for query, row in enumerate(tables["sparse"])]
    assert found["sparse"] == pytest.approx(np.mean(alone), abs=1e-5)
    assert len(set(found.values())) == 4


def test_a_search_in_which_one_model_counts_is_that_model_on_each_task(
    models: Mapping[str, Path], tmp_path: Path
) -> None:
    kinds = ("retrieval", "reranking")
    catalogue = write_catalogue(tmp_path / "sets", kinds)
    retrievers = [str(models["dense"]), {"model": str(models["sparse"]), "backbone": "splade"}]
    stack = {"stack": {"retrievers": retrievers, "fusion": "weighted", "weights": [0, 1]}}
    scores = evaluation(catalogue, ["$search", retrievers[1], retrievers[0]])
    scores["evaluate"]["evaluators"]["mteb"]["data"][0]["only"] = list(kinds)
    results = run_recipe(
        {"steps": {"search": stack, "scores": scores}}, tmp_path / "out", quiet=True
    )
    values = read_scores(results["scores"].path).values
    assert values["search"] == values["sparse"] != values["dense"]


@pytest.mark.slow
def test_weights_are_those_that_serve_development_data_best(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
) -> None:
    retrievers = [{"model": str(models["sparse"]), "backbone": "splade"}, str(models["dense"])]
    development = {"mteb": {"data": [{"path": str(catalogue), "only": ["retrieval"]}]}}
    stack = {"retrievers": retrievers, "fusion": "weighted", "development": development}
    scores = evaluation(catalogue, ["$search"])
    with pytest.warns(UserWarning, match="weights are found on the test half of retrieval"):
        found = run(tmp_path, search={"stack": stack}, scores=scores)
    both = [tables["sparse"], tables["dense"]]
    grid = [(share / 10, (10 - share) / 10) for share in range(11)]
    expected = {weights: round(fused(both, weights, 0), 5) for weights in grid}
    best = max(expected.values())
    record = json.loads((tmp_path / "search" / "stack.json").read_text())
    weights = tuple(record["weights"])
    assert expected[weights] == pytest.approx(best, abs=1e-5)
    assert found["search"] == record["development_score"] == pytest.approx(best, abs=1e-5)
    equal = [str(models["dense"]), {"model": str(models["dense"]), "backbone": "text_encoder"}]
    with pytest.warns(UserWarning, match="weights are found on the test half of retrieval"):
        run(tmp_path / "equal", search={"stack": {**stack, "retrievers": equal}}, scores=scores)
    record = json.loads((tmp_path / "equal" / "search" / "stack.json").read_text())
    assert record["weights"] == [
        0.5,
        0.5,
    ]  # all weights are as good, and these are the most even ones


@pytest.mark.parametrize(
    ("wanted", "found", "trials"),
    [((0.33, 0.67), [0.3, 0.7], 11), ((0.48, 0.32, 0.2), [0.4, 0.4, 0.2], 21)],
)
def test_shares_of_two_models_are_tenths_and_of_more_fifths_without_the_reranker(
    models: Mapping[str, Path],
    tmp_path: Path,
    wanted: tuple[float, ...],
    found: list[float],
    trials: int,
) -> None:
    def nearness(stack: SearchStack) -> float:
        return 1 - sum((a - b) ** 2 for a, b in zip(stack.weights, wanted, strict=True))

    development = ScoredBy(score=nearness)
    names = ("dense", "other", "dense")[: len(wanted)]
    bench = Bench(tmp_path)
    artifact = Stack(
        retrievers=tuple(Retriever(model=ModelRef(str(models[name]))) for name in names),
        reranker=Reranker(model=ModelRef(str(models["reranker"]))),
        fusion="weighted",
        development=development,
    ).run(bench)
    record = artifact.details["stack"]
    assert record["weights"] == found
    assert len(development.asked) == len({stack.weights for stack in development.asked}) == trials
    assert all(stack.reranker is None for stack in development.asked)
    parts = [model["part"] for model in record["models"]]
    assert parts == [*["retriever"] * len(wanted), "reranker"]
    contents = [model_at(models[name]).fingerprint for name in (*names, "reranker")]
    assert [model["fingerprint"] for model in record["models"]] == contents
    assert list(artifact.parents) == contents


@pytest.mark.parametrize(("count", "refused"), [(1, True), (2, False), (4, False), (5, True)])
def test_weights_are_found_for_two_to_four_models(
    catalogue: Path, models: Mapping[str, Path], count: int, refused: bool
) -> None:
    development = {"mteb": {"data": [{"path": str(catalogue), "only": ["retrieval"]}]}}
    retrievers = [str(models["dense"])] * count
    stack = {"retrievers": retrievers, "reranker": str(models["reranker"])}
    found = problems(search={"stack": {**stack, "fusion": "weighted", "development": development}})
    assert any("for 2 to 4 retrievers" in problem for problem in found) == refused
    assert bool(found) == refused


def test_a_retriever_finds_its_documents_once_for_all_stacks(
    catalogue: Path,
    models: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Path] = []
    original = Splade.load

    def load(self: Splade, folder: Path, **options: Any) -> Any:
        loaded.append(folder)
        return original(self, folder, **options)

    monkeypatch.setattr(Splade, "load", load)
    retrievers = [{"model": str(models["sparse"]), "backbone": "splade"}, str(models["dense"])]
    stacks = {f"k{k}": {"stack": {"retrievers": retrievers, "k": k}} for k in (1, 60)}
    found = run(tmp_path, **stacks, scores=evaluation(catalogue, [f"${name}" for name in stacks]))
    assert loaded == [models["sparse"]]
    assert found["k1"] != found["k60"]


def test_a_reranker_that_harms_is_refused_by_name(
    catalogue: Path,
    models: Mapping[str, Path],
    tables: Mapping[str, np.ndarray[Any, Any]],
    tmp_path: Path,
) -> None:
    dense = str(models["dense"])
    stack = {"retriever": dense, "reranker": str(models["reranker"]), "depth": 30}
    demand = {"model": "$search", "not_worse_than": [dense]}
    with pytest.raises(RequirementError, match=r"search .*not worse than dense"):
        run(
            tmp_path / "harms",
            search={"stack": stack},
            scores=evaluation(catalogue, ["$search", dense], require=[demand]),
        )
    # At depth 1 the order of the retriever stays, and so does each query's gain.
    found = run(
        tmp_path / "harmless",
        search={"stack": {**stack, "depth": 1}},
        scores=evaluation(
            catalogue, ["$search", dense], require=[demand], compare=[["$search", dense]]
        ),
    )
    assert found["search"] == found["dense"]


def test_a_pair_is_scored_once_for_all_depths(
    catalogue: Path,
    models: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    original = CrossEncoder.load

    def load(self: CrossEncoder, folder: Path, **options: Any) -> Any:
        encoder: Any = original(self, folder, **options)
        tokenise = encoder.tokenise_pairs

        def record(queries: Sequence[str], documents: Sequence[str], **how: Any) -> Any:
            asked.extend(zip(queries, documents, strict=True))
            return tokenise(queries, documents, **how)

        encoder.tokenise_pairs = record
        return encoder

    monkeypatch.setattr(CrossEncoder, "load", load)
    stack = {"retriever": str(models["dense"]), "reranker": str(models["reranker"])}
    run(
        tmp_path,
        deep={"stack": {**stack, "depth": 9}},
        shallow={"stack": {**stack, "depth": 5}},
        deeper={"stack": {**stack, "depth": 11}},
        scores=evaluation(catalogue, ["$deep", "$shallow", "$deeper"]),
    )
    assert len(asked) == len(set(asked)) == 12 * 11


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retriever": "dense"}, "one retriever alone is no stack"),
        ({"reranker": "reranker"}, "a search needs a retriever"),
        (
            {"retriever": "dense", "retrievers": ["other"], "reranker": "reranker"},
            "give one retriever, or several as `retrievers`",
        ),
        (
            {"retriever": ("reranker", "cross_encoder"), "reranker": "reranker"},
            "scores pairs and cannot search; name it as `reranker`",
        ),
        (
            {"retriever": "dense", "reranker": ("other", "text_encoder")},
            "embeds single texts, and a reranker scores pairs",
        ),
        ({"retriever": "dense", "reranker": "other"}, "has no head with one output"),
        ({"retriever": "reranker", "reranker": "reranker"}, "text_encoder takes a transformer's"),
        (
            {"retrievers": [("dense", "multi_vector"), "other"]},
            "has no linear layer for vectors of tokens",
        ),
        ({"retrievers": [("dense", "splade"), "other"]}, "has no head that predicts tokens"),
        (
            {"retrievers": [("late", {"multi_vector": {"dimension": 5}}), "other"]},
            "dimension: 5 asks for others",
        ),
        ({"retriever": "dense", "reranker": "reranker", "depth": 0}, "depth"),
        ({"retrievers": ["dense", "other"], "fusion": "weighted"}, "a weight for each of 2"),
        ({"retrievers": ["dense", "other"], "weights": [1, 2]}, "weights is for"),
        (
            {"retrievers": ["dense", "other"], "fusion": "weighted", "weights": [0, 0]},
            "all weights are 0",
        ),
    ],
)
def test_a_search_that_cannot_be_is_found_before_the_run(
    models: Mapping[str, Path], options: Mapping[str, Any], problem: str
) -> None:
    def named(value: Any) -> Any:
        if isinstance(value, tuple):
            return {"model": str(models[value[0]]), "backbone": value[1]}
        return str(models[value]) if isinstance(value, str) else value

    changed = {
        name: [named(one) for one in value] if name == "retrievers" else named(value)
        for name, value in options.items()
        if name not in ("fusion", "weights")
    }
    changed |= {name: options[name] for name in ("fusion", "weights") if name in options}
    try:
        found = problems(search={"stack": changed})
    except EmbergeError as error:  # the grammar refuses it
        found = [str(error)]
    assert len(found) == 1, found
    assert problem in found[0]


def test_a_search_is_scored_where_documents_are_found(
    catalogue: Path, models: Mapping[str, Path]
) -> None:
    stack = {"stack": {"retriever": str(models["dense"]), "reranker": str(models["reranker"])}}
    scores = evaluation(catalogue, ["$search"])
    scores["evaluate"]["evaluators"]["mteb"]["data"][0]["only"] = ["retrieval", "sts"]
    (problem,) = problems(search=stack, scores=scores)
    assert problem.startswith("$search: is a whole search, and sts has no documents")
    scores = evaluation(catalogue, ["$search"])
    scores["evaluate"]["evaluators"]["mteb"]["dims"] = [8]
    (problem,) = problems(search=stack, scores=scores)
    assert "dims is about the vectors of one model" in problem
    scores = evaluation(catalogue, [{"model": "$search", "backbone": "splade"}])
    (problem,) = problems(search=stack, scores=scores)
    assert "is a whole search, whose step names backbones" in problem
    loss = {"mean_loss": {"data": str(catalogue), "loss": "infonce"}}
    scores = {"evaluate": {"models": ["$search"], "evaluators": loss}}
    assert any(
        "MeanLoss scores a model alone" in one for one in problems(search=stack, scores=scores)
    )
    merge = {"merge": {"models": ["$search", str(models["other"])], "strategy": "linear"}}
    with pytest.raises(
        EmbergeError, match=r"\$search makes a search, and .*'models' takes a model"
    ):
        problems(search=stack, merged=merge)


def test_models_of_every_kind_and_whole_searches_are_timed(
    catalogue: Path, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, tuple[str, ...]]] = []
    load = Mteb.load_pair_scorer

    def note(self: Mteb, model: Any, workspace: Any) -> Any:
        score = load(self, model, workspace)
        assert score is not None

        def noted(query: str, documents: Sequence[str]) -> Any:
            read.append((query, tuple(documents)))
            return score(query, documents)

        return noted

    monkeypatch.setattr(Mteb, "load_pair_scorer", note)
    entries = [
        str(models["dense"]),
        {"model": str(models["sparse"]), "backbone": "splade"},
        {"model": str(models["late"]), "backbone": "multi_vector"},
        "$search",
    ]
    stack = {
        "retrievers": [str(models["dense"]), entries[1]],
        "reranker": str(models["reranker"]),
        "depth": 6,
    }
    cost = {"queries": 2, "texts": 4, "rounds": 1}
    scores = evaluation(catalogue, entries, cost=cost)
    run(tmp_path, search={"stack": stack}, scores=scores)
    costs = read_scores(tmp_path / "scores").encoding_costs
    assert [*costs] == ["dense", "sparse", "late", "search"]
    # The reranker reads each query with six documents, of four: once before, and once for each of two.
    assert len(read) == 3
    assert len({query for query, _ in read}) == 2
    assert all(len(documents) == 6 and len({*documents}) == 4 for _, documents in read)
    both = costs["dense"].index_bytes + costs["sparse"].index_bytes
    assert costs["search"].index_bytes == pytest.approx(both, rel=1e-3)
    assert costs["search"].milliseconds > 0
    assert (costs["dense"].dimension, costs["dense"].index_bytes) == (32, 4 * 32)
    assert costs["sparse"].index_bytes <= 8 * costs["sparse"].dimension
    assert costs["late"].dimension == 128
    assert costs["late"].index_bytes > 2 * 4 * 128  # several tokens a document


def test_a_search_is_not_timed_without_its_reranker(
    catalogue: Path, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mteb, "load_pair_scorer", lambda *_: None)
    stack = {"retriever": str(models["dense"]), "reranker": str(models["reranker"])}
    scores = evaluation(catalogue, ["$search"], cost={"rounds": 1})
    with pytest.raises(EmbergeError, match="Mteb scores no pairs by reranker; leave out cost"):
        run(tmp_path, search={"stack": stack}, scores=scores)


def test_a_reranker_alone_has_no_cost(
    catalogue: Path, models: Mapping[str, Path], tmp_path: Path
) -> None:
    reranker = {"model": str(models["reranker"]), "backbone": "cross_encoder"}
    scores = evaluation(catalogue, [str(models["dense"]), reranker], cost={"rounds": 1})
    kinds = catalogue.parent / "reranking"
    write_catalogue(kinds, ("reranking",))
    scores["evaluate"]["evaluators"]["mteb"]["data"] = [{"path": str(kinds / "datasets.yaml")}]
    results = run_recipe({"steps": {"scores": scores}}, out=tmp_path, quiet=True)
    assert [*read_scores(results["scores"].path).encoding_costs] == ["dense"]


def test_a_model_has_one_backbone_of_its_own(catalogue: Path, models: Mapping[str, Path]) -> None:
    sparse = str(models["sparse"])
    entries = [
        {"model": sparse, "backbone": "splade", "name": "one"},
        {"model": sparse, "backbone": {"splade": {"max_length": 8}}, "name": "two"},
    ]
    found = problems(scores=evaluation(catalogue, entries))
    assert any("is named with several backbones" in problem for problem in found)
