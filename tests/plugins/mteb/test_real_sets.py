"""The real MiniLM on real sets, against baselines that were computed without mteb, and against mteb alone.

pytest tests/plugins/mteb/test_real_sets.py -m "slow or benchmark" -s
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
import yaml
from emberge import DataRef, ModelRef
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_mteb.evaluator import Mteb
from emberge_mteb.local_sets import EvalEntry, local_sets
from emberge_mteb.local_tasks import local_task

from tests.support.bench import BACKBONE, Bench, model_at


def small(path: Path, name: str) -> EvalEntry:
    return EvalEntry(path=DataRef(str(path)), only=(name,), limit_queries=20, limit_corpus=30)


def test_minilm_finds_what_a_question_asks_for(
    shared_data: Path, minilm: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    evaluator = Mteb(data=(small(shared_data / "datasets.yaml", "squad"),), backbone=BACKBONE)
    (score,) = evaluator.evaluate(model_at(minilm), evaluator.plan(bench), bench)
    assert score.score > 0.9
    assert score.units is not None
    assert len(score.units.values) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["humaneval", "sts16_qq_postedit", "covid_faq_pairs", "stsb_de", "snli", "squad"]
)
def test_scores_are_the_published_baselines(
    name: str, shared_data: Path, minilm: Path, tmp_path: Path
) -> None:
    path = shared_data / "datasets.yaml"
    sets = {one["name"]: one for one in yaml.safe_load(path.read_text())["eval"]}
    baseline = sets[name]["baseline"]["test"]
    bench = Bench(tmp_path)
    bench.many["minilm"] = [model_at(minilm, "MiniLM")]
    evaluator = Mteb(data=(EvalEntry(path=DataRef(str(path)), only=(name,)),), backbone=BACKBONE)
    entry = EvaluatedModel(model=ModelRef("minilm"))
    artifact = Evaluate(models=(entry,), evaluators=(evaluator,)).run(bench)
    assert 100 * artifact.details["means"]["MiniLM"]["task"] == pytest.approx(baseline, abs=0.05)


@pytest.mark.benchmark
def test_a_retrieval_set_takes_no_longer_than_with_mteb_alone(
    shared_data: Path, minilm: Path, tmp_path: Path
) -> None:
    """1,000 documents and 200 queries; one model, then a second one with the same tokenizer."""
    import mteb
    from sentence_transformers import SentenceTransformer

    bench = Bench(tmp_path)
    entry = EvalEntry(
        path=DataRef(str(shared_data / "datasets.yaml")),
        only=("nq",),
        limit_queries=200,
        limit_corpus=1000,
    )
    evaluator = Mteb(data=(entry,), backbone=BACKBONE)
    plan = evaluator.plan(bench)
    (one,) = local_sets([entry], bench.data, bench.readers)
    data = one.load(bench.readers)

    ours, alone = [], []
    for _ in range(2):  # in turn, so that a busy machine is busy for both
        start = time.process_time()
        (score,) = evaluator.evaluate(model_at(minilm), plan, bench)
        ours.append(time.process_time() - start)
        task = local_task(one.set, data, split="test", revision="0")
        start = time.process_time()
        model = SentenceTransformer(str(minilm), device="cpu")
        with warnings.catch_warnings():
            # wrapping a SentenceTransformer, mteb calls what it and sentence-transformers deprecate
            warnings.simplefilter("ignore")
            results = mteb.evaluate(
                model, task, cache=None, show_progress_bar=False, co2_tracker=False
            )
        alone.append(time.process_time() - start)
    print(f"\nCPU seconds: ours {ours}, mteb with SentenceTransformer.encode {alone}")
    assert score.score == pytest.approx(results.task_results[0].get_score(), abs=2e-5)
    assert min(ours) < 1.1 * min(alone)
