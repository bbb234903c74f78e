"""Local sets of every kind become mteb tasks; mteb's evaluators give the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Columns, DataError, DataRef, Model, TaskScore
from emberge_data import EvalSet, RerankingData, RetrievalData
from emberge_evaluate import compute_statistic
from emberge_mteb.evaluator import Mteb
from emberge_mteb.local_sets import EvalEntry
from emberge_mteb.local_tasks import build_local_task
from emberge_mteb.models import VectorModel, build_model_meta
from emberge_mteb.scoring import score_task
from emberge_mteb.task_texts import Prompts, TaskTexts

from tests.support.bench import (
    BACKBONE,
    KINDS,
    Bench,
    embedded_texts,
    model_at,
    write_catalogue,
    write_retrieval,
)
from tests.support.tolerance import EXACT, of_pass

METRICS = {
    "retrieval": ("ndcg_at_10", "query"),
    "reranking": ("map_at_1000", "query"),
    "classification": ("accuracy", "text"),
    "clustering": ("v_measure", None),
    "sts": ("cosine_spearman", "pair"),
    "pair_classification": ("cosine_ap", "pair"),
}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalogue(tmp_path_factory.mktemp("sets"))


def mteb(catalogue: Path, **options: Any) -> Mteb:
    entry = {
        key: options.pop(key)
        for key in ("only", "split", "limit_queries", "limit_corpus")
        if key in options
    }
    path = DataRef(str(catalogue))
    return Mteb(data=(EvalEntry(path=path, **entry),), backbone=BACKBONE, **options)


def scored(evaluator: Mteb, model: Model, bench: Bench) -> dict[str, TaskScore]:
    plan = evaluator.plan(bench)
    return {score.task.name: score for score in evaluator.evaluate(model, plan, bench)}


@pytest.fixture(scope="module")
def scores(
    catalogue: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TaskScore]:
    return scored(mteb(catalogue), model_at(bert), Bench(tmp_path_factory.mktemp("bench")))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_gets_its_main_metric(kind: str, scores: dict[str, TaskScore]) -> None:
    score = scores[kind]
    metric, unit = METRICS[kind]
    entry = score.result["scores"]["test"][0]
    assert score.task.metric == metric
    assert score.score == entry["main_score"] == entry[metric]
    assert 0 < score.score <= 1
    assert (score.units.unit if score.units else None) == unit
    json.dumps(score.result)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "clustering"])
def test_the_units_make_up_the_score(kind: str, scores: dict[str, TaskScore]) -> None:
    units = scores[kind].units
    assert units is not None
    # mteb rounds to five digits.
    assert compute_statistic(units) == pytest.approx(scores[kind].score, rel=0, abs=5.01e-6)


def reranking_rows(order: int) -> RerankingData:
    rows = range(100)[::order]
    negatives = [[f"text {row} {n}" for n in range(5)] for row in rows]
    return RerankingData([f"Q{row}" for row in rows], [[f"text {row}"] for row in rows], negatives)


def retrieval_rows(order: int) -> RetrievalData:
    rows = range(400)[::order]
    queries = {f"q{row}": f"Q{row}" for row in rows if row < 100}
    # Relevant documents have the ids that mteb puts first, or last.
    ids = {row: f"{'z' if (row < 100) == (order > 0) else 'a'}{row}" for row in rows}
    relevant = {query: {ids[int(query[1:])]: 1} for query in queries}
    return RetrievalData({ids[row]: f"text {row}" for row in rows}, queries, relevant)


@pytest.mark.parametrize(
    ("task", "rows", "neutral"),
    [
        # the means over all orders: of 1 / rank among 6, and of 1 / log2(1 + rank) in the first 10 of 400
        ("reranking", reranking_rows, sum(1 / rank for rank in range(1, 7)) / 6),
        ("retrieval", retrieval_rows, sum(1 / np.log2(1 + rank) for rank in range(1, 11)) / 400),
    ],
)
def test_tied_texts_are_ordered_by_what_they_say(
    task: Any, rows: Any, neutral: float, tmp_path: Path
) -> None:
    def score(order: int, embed: Any) -> Any:
        model = VectorModel(embed, TaskTexts(Prompts(), tmp_path), build_model_meta("m", "0"))
        model.prepare("task", {})
        one = EvalSet(name="ties", folder=tmp_path, task=task)
        return score_task(build_local_task(one, rows(order), split="test", revision="0"), model)

    collapsed = [score(order, lambda texts, _: np.ones((len(texts), 4))) for order in (1, -1)]
    assert collapsed[0].score == collapsed[1].score == pytest.approx(neutral, abs=0.1)


def test_scores_are_sentence_transformers_own(
    catalogue: Path, bert: Path, scores: dict[str, TaskScore]
) -> None:
    """The same figures from SentenceTransformer.encode and a few lines of numpy."""
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    from tests.support.bench import JsonLines

    rows = [row for _, row in JsonLines().rows(catalogue.parent / "eval" / "sts" / "test.jsonl.gz")]
    model = SentenceTransformer(str(bert), device="cpu")
    left = model.encode([row["query"] for row in rows])  # type: ignore[index]
    right = model.encode([row["pos"][0] for row in rows])  # type: ignore[index]
    gold = [row["pos_scores"][0] for row in rows]  # type: ignore[index]
    cosines = (left * right).sum(1)
    # Two cosines as close as rounding may change places, which moves the score by at most 12 / n (n + 1).
    count = len(cosines)
    close = np.abs(cosines[:, None] - cosines) <= 4 * of_pass(bert)
    swaps = (int(close.sum()) - count) / 2
    assert swaps < count / 4, "too many to compare anything"
    expected = spearmanr(cosines, gold)[0]
    moved = EXACT + swaps * 12 / count / (count + 1)
    assert scores["sts"].score == pytest.approx(expected, rel=0, abs=moved)


def test_a_text_that_comes_again_is_embedded_once(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = embedded_texts(monkeypatch)
    kinds = tuple(kind for kind in KINDS if kind != "classification")
    scored(mteb(catalogue, only=kinds), model_at(bert), Bench(tmp_path))
    assert seen
    assert len(seen) == len(set(seen))


def test_a_cut_set_keeps_what_is_relevant_and_says_so(tmp_path: Path, bert: Path) -> None:
    catalogue = write_catalogue(tmp_path / "sets", ["retrieval", "sts", "clustering"])
    write_retrieval(tmp_path / "sets/eval/retrieval", queries=20, documents=60)
    evaluator = mteb(catalogue, limit_queries=5, limit_corpus=12)
    task, *others = evaluator.plan(Bench(tmp_path))
    assert task.note == "at most 5 queries and 12 documents"
    assert [one.note for one in others] == ["at most 5 pairs", "at most 5 texts"]
    assert task.fingerprint != mteb(catalogue).plan(Bench(tmp_path))[0].fingerprint
    (score,) = evaluator.evaluate(model_at(bert), [task], Bench(tmp_path))
    assert score.units is not None
    assert len(score.units.values) == 5
    assert score.score > 0  # the relevant documents are still there to be found


def test_an_evaluation_reports_its_tasks_and_leaves_no_trace_elsewhere(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in global random numbers nor in mteb's own cache."""
    import random

    import torch
    from mteb.cache import ResultCache

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("mteb's cache was used")

    monkeypatch.setattr(ResultCache, "save_to_cache", refuse)
    monkeypatch.setattr(ResultCache, "load_task_result", refuse)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    bench = Bench(tmp_path)
    scored(mteb(catalogue, only=("retrieval", "clustering")), model_at(bert), bench)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])
    done = [told[0] for told in bench.told]
    assert done == sorted(done)
    assert bench.told[-1][:3] == (2, 2, "tasks")
    for number, share in ((1, 0), (2, 1)):
        notes = [told[3] for told in bench.told if told[0] == share]
        assert any(f"task {number} of 2: " in one and one.endswith(" texts") for one in notes)


def test_a_collapsed_model_is_told_and_counts_as_zero(
    catalogue: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge.encoding import TextEmbedder

    def embed(self: TextEmbedder, texts: Any, **_: Any) -> Any:
        return np.ones((len(texts), 4), np.float32)

    monkeypatch.setattr(TextEmbedder, "embed", embed)
    bench = Bench(tmp_path)
    (score,) = scored(mteb(catalogue, only=("sts",)), model_at(bert), bench).values()
    assert (score.score, score.units) == (0.0, None)
    assert "counted as 0" in bench.warnings[0]


def test_prompts_go_before_queries_and_not_before_documents(tmp_path: Path, bert: Path) -> None:
    catalogue = write_catalogue(tmp_path / "sets", ["retrieval"])
    text = catalogue.read_text().replace("name: ret", "instruction: find a file\n  name: ret")
    catalogue.write_text(text)
    asked: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        from emberge.encoding import TextEmbedder

        original = TextEmbedder.embed

        def embed(self: TextEmbedder, texts: Any, *, prompt: str, **options: Any) -> Any:
            asked.setdefault(prompt, []).extend(texts)
            return original(self, texts, prompt=prompt, **options)

        patch.setattr(TextEmbedder, "embed", embed)
        for prompt in ("Task: {instruction} ", "{prompt}", None):
            scored(mteb(catalogue, prompt=prompt), model_at(bert), Bench(tmp_path))
    assert list(asked) == ["Task: find a file ", "", "Instruct: find a file\nQuery: "]
    assert len(asked["Task: find a file "]) == len(asked["Instruct: find a file\nQuery: "]) == 12


def test_one_name_in_two_catalogues_is_refused(catalogue: Path, tmp_path: Path) -> None:
    entry = EvalEntry(path=DataRef(str(catalogue)), only=("sts",))
    with pytest.raises(DataError, match="task 'sts' is named 2 times"):
        Mteb(data=(entry, entry), backbone=BACKBONE).plan(Bench(tmp_path))


# ── files of rows ───────────────────────────────────────────────────────────────────────────────


def write_questions(path: Path, count: int) -> Path:
    rows = [{"query": f"question {n}", "pos": f"answer {n}"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_rows_is_a_task_whose_fingerprint_is_that_of_its_content(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "own.jsonl", 5)
    bench = Bench(tmp_path / "run")

    def plan(**options: Any) -> Any:
        entry = EvalEntry(path=DataRef(str(path)), **options)
        (task,) = Mteb(data=(entry,), backbone=BACKBONE).plan(bench)
        return task

    first = plan()
    assert (first.name, first.kind, first.metric, first.domain, first.split) == (
        *("own", "retrieval", "ndcg_at_10", "in", "test"),
    )
    documents = write_questions(tmp_path / "docs.jsonl", 2)
    documents.write_text('{"text": "more"}\n')
    others = [
        plan(documents=DataRef(str(documents))),
        plan(columns=Columns(anchor="pos", positive="query")),
        plan(instruction="Find it."),
        plan(split="dev"),
    ]
    documents.write_text('{"text": "other"}\n')
    others.append(plan(documents=DataRef(str(documents))))
    write_questions(path, 6)
    others.append(plan())
    assert len({first.fingerprint, *(task.fingerprint for task in others)}) == 7
    write_questions(path, 5)
    assert plan() == first
