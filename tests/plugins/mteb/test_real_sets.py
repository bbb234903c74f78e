"""The real MiniLM on real sets, against baselines that were computed without mteb."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from emberge import DataRef, ModelRef
from emberge_evaluate import Evaluate, EvaluatedModel
from emberge_mteb.evaluator import Mteb
from emberge_mteb.local_sets import EvalEntry

from tests.support.bench import BACKBONE, Bench, model_at


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
