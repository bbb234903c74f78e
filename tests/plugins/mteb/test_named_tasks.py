"""mteb's own tasks by name: found, refused, loaded, cut. The hub is played by a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mteb
import pytest
from emberge import DataEntry, DataError, DataRef, check_recipe, load_plugins, parse_recipe
from emberge_mteb.evaluator import Mteb
from emberge_mteb.hub_tasks import build_hub_tasks, find_split
from emberge_mteb.local_sets import EvalEntry

from tests.support.bench import BACKBONE, Bench, model_at, sentence, write_catalogue
from tests.support.glance import Glance, faults

RNG = random.Random(0)


def write_half(folder: Path, split: str, rows: Sequence[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def sts12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of mteb's STS12, ten pairs, where mteb looks for it."""
    folder = tmp_path / "sts12"
    rows = []
    for i in range(10):
        text = sentence(RNG)
        other = " ".join([*text.split()[: i % 5], *sentence(RNG).split()[i % 5 :]])
        rows.append({"sentence1": text, "sentence2": other, "score": float(i % 5)})
    write_half(folder, "test", rows)
    metadata = mteb.get_task("STS12").metadata
    monkeypatch.setitem(metadata.dataset, "path", str(folder))
    monkeypatch.setitem(metadata.dataset, "revision", "main")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_named_task_is_loaded_and_scored(sts12: Path, bert: Path, tmp_path: Path) -> None:
    evaluator, bench = Mteb(tasks=("STS12",), backbone=BACKBONE), Bench(tmp_path)
    (task,) = evaluator.plan(bench)
    assert (task.name, task.kind, task.metric) == ("STS12", "sts", "cosine_spearman")
    assert (task.languages, task.domain) == (("eng",), None)
    (score,) = evaluator.evaluate(model_at(bert), [task], bench)
    assert score.units is not None
    assert len(score.units.values) == 10
    assert score.result["scores"]["test"][0]["main_score"] == score.score
    rows = [json.loads(line) for line in (sts12 / "test.jsonl").read_text().splitlines()]
    expected = {row[side] for row in rows for side in ("sentence1", "sentence2")}
    assert set(evaluator.texts(task, bench)) == {("query", text) for text in expected}
    (source,) = evaluator.list_sources(bench, "")
    first, second = source.make(), source.make()
    assert first.rng_state.random() == second.rng_state.random() != first.rng_state.random()


@pytest.fixture
def nano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data in the layout of NanoBEIR's sets, where mteb looks for each of them."""
    folder, texts = tmp_path / "nano", [sentence(RNG) for _ in range(6)]
    documents = [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts[:4])]
    judged = [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": 1} for i in range(3)]
    judged.append({"query-id": "q3", "corpus-id": "d0", "score": 1})
    sets = {"corpus": documents, "queries": queries, "qrels": judged}
    for name, rows in sets.items():
        write_half(folder / name, "train", rows)
    configs = [{"config_name": name, "data_dir": name} for name in sets]
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")
    for task in mteb.get_benchmark("NanoBEIR").tasks:
        monkeypatch.setitem(task.metadata.dataset, "path", str(folder))
        monkeypatch.setitem(task.metadata.dataset, "revision", "main")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.usefixtures("nano")
def test_every_set_of_nanobeir_is_scored(bert: Path, tmp_path: Path) -> None:
    evaluator, bench = Mteb(benchmark="NanoBEIR", backbone=BACKBONE), Bench(tmp_path)
    tasks = evaluator.plan(bench)
    scores = list(evaluator.evaluate(model_at(bert), tasks, bench))
    assert [score.task.name for score in scores] == [task.name for task in tasks]
    assert len(scores) == 13
    for score in scores:
        assert score.units is not None
        assert list(score.units.values[:3]) == [1, 1, 1]
        assert score.units.values[3] < 1


def test_data_that_cannot_be_had_is_one_clear_line(bert: Path, tmp_path: Path) -> None:
    evaluator, bench = Mteb(tasks=("STS13",), backbone=BACKBONE), Bench(tmp_path)
    with pytest.raises(DataError, match=r"mteb task 'STS13': its data 'mteb/sts13") as caught:
        list(evaluator.evaluate(model_at(bert), evaluator.plan(bench), bench))
    assert "run once with a network" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_names_an_unknown_task_and_an_unknown_benchmark() -> None:
    (line,) = faults(Mteb(tasks=("STS21",)))
    assert line.startswith("error: tasks: mteb has no task 'STS21'; did you mean 'STS")
    (line,) = faults(Mteb(benchmark="MTEB(eng, v3)"))
    assert "mteb has no benchmark 'MTEB(eng, v3)'; did you mean 'MTEB(" in line
    (both,) = faults(Mteb(tasks=("NFCorpos", "SciFact", "Banking77Clasification")))
    assert "'NFCorpus'" in both, "each at once"
    assert "'Banking77Classification'" in both
    (line,) = faults(Mteb(benchmark="MTEB(eng, v2)", only=("Banking77Clasification",)))
    assert "'Banking77Classification'" in line


def test_check_refuses_nothing_to_do_and_doubles() -> None:
    assert "nothing to score on" in faults(Mteb())[0]
    assert "task 'STS13' is named 2 times" in faults(Mteb(tasks=("STS13", "STS13")))[-1]


def test_languages_keep_a_part_of_a_task() -> None:
    (task,) = build_hub_tasks(["STS22.v2"], None, ["deu"])
    assert set(task.hf_subsets) == {"de", "de-en", "de-fr", "de-pl"}
    with pytest.raises(DataError, match="STS22"):
        build_hub_tasks(["STS22.v2"], None, ["xho"])
    with pytest.raises(DataError, match="leave it out"):
        build_hub_tasks(["UCF101VideoZeroShotClassification"], None, ())


CORPORA = """\
train:
- {name: pairs, hub: owner/pairs, task: sts, ind_tasks: [STS12, STSBenchmark]}
- {name: other, hub: owner/other, task: retrieval, ind_tasks: [FEVER]}
"""


@pytest.fixture
def corpora(tmp_path: Path) -> DataRef:
    (tmp_path / "corpora.yaml").write_text(CORPORA)
    return DataRef(str(tmp_path / "corpora.yaml"))


@pytest.mark.parametrize(
    ("only", "domains"),
    [((), "out in in in"), (("pairs",), "out out in in"), (("sts",), "out in out out")],
)
def test_training_data_says_what_is_in_domain(
    sts12: Path, corpora: DataRef, only: tuple[str, ...], domains: str, tmp_path: Path
) -> None:
    kinds = ("retrieval", "sts", "clustering")
    data = (EvalEntry(path=DataRef(str(write_catalogue(tmp_path / "sets", kinds)))),)
    text = CORPORA.replace("other,", "sts,").replace("STSBenchmark", "STSBenchmark, clustering")
    Path(corpora.text).write_text(text)
    trained_on = DataEntry(path=corpora, only=only)
    evaluator = Mteb(tasks=("STS12",), data=data, in_domain_of=(trained_on,), backbone=BACKBONE)
    found = [task.domain for task in evaluator.plan(Bench(tmp_path))]
    assert found == domains.split(), "whatever the catalogue says"
    assert not [p for p in evaluator.check(Glance()) if p.severity == "error"]
    local = Mteb(data=data, in_domain_of=(DataEntry(hub="owner/sts"),), backbone=BACKBONE)
    assert [task.domain for task in local.plan(Bench(tmp_path))] == ["out", "in", "out"]
    assert not [p for p in local.check(Glance()) if p.severity == "error"]


def test_a_misspelt_in_domain_task_is_named_before_a_run(tmp_path: Path, corpora: DataRef) -> None:
    Path(corpora.text).write_text(CORPORA.replace("FEVER", "FEVR"))
    evaluator = Mteb(tasks=("STS12",), in_domain_of=(DataEntry(path=corpora),))
    (of_data,) = (fault for fault in faults(evaluator) if fault.startswith("error"))
    assert of_data.startswith("error: in_domain_of: mteb has no task 'FEVR'")
    assert "did you mean 'FEVER'" in of_data


def test_a_benchmark_is_pinned_to_named_tasks() -> None:
    name = "MTEB(Code, v1)"
    pinned = build_hub_tasks((), name, (), ("CosQA", "AppsRetrieval"))
    assert [task.metadata.name for task in pinned] == ["CosQA", "AppsRetrieval"]
    assert len(build_hub_tasks((), name, ())) == 12
    with pytest.raises(DataError, match="has no task 'CosQ'; did you mean 'CosQA'"):
        build_hub_tasks((), name, (), ("CosQ",))
    assert faults(Mteb(tasks=("STS12",), only=("STS12",)))[0].startswith("error: only")
    text = "steps:\n s:\n  evaluate:\n   models: [a]\n   evaluators:\n    mteb:\n     {}\n     {}\n"
    for only, place, message in (
        (
            "only: [CosQ]",
            "recipe:8",
            f"benchmark '{name}' of mteb {mteb.__version__} has no task 'CosQ';",
        ),
        (
            "only: [CosQA]",
            "recipe:8",
            "the data of 1 task of mteb is downloaded when the run starts",
        ),
    ):
        recipe = parse_recipe(text.format(f"benchmark: {name}", only))
        found = check_recipe(recipe, load_plugins(), deep=False).problems
        assert any(one.where == place and one.message.startswith(message) for one in found), found


def test_tasks_show_before_a_run_with_their_half_of_the_data(sts12: Path, tmp_path: Path) -> None:
    catalogue = write_catalogue(tmp_path / "sets")
    sts = catalogue.parent / "eval" / "sts"
    (sts / "dev.jsonl.gz").hardlink_to(sts / "test.jsonl.gz")
    test, dev = (
        EvalEntry(path=DataRef(str(catalogue)), only=("sts",), split=split)
        for split in ("test", "dev")
    )
    evaluator = Mteb(tasks=("STS12",), data=(test, dev), backbone=BACKBONE)
    found = evaluator.preview(Glance())
    assert found is not None
    assert [(t.name, t.kind, t.split) for t in found] == [
        ("sts", "sts", "test"),
        ("sts-dev", "sts", "dev"),
        ("STS12", "sts", "test"),
    ]
    planned = evaluator.plan(Bench(tmp_path))
    same = ("name", "kind", "metric", "languages", "split")
    for ahead, task in zip(found, planned, strict=True):
        assert [getattr(ahead, name) for name in same] == [getattr(task, name) for name in same]
    # The names of splits decide: this one's only split is called dev.
    assert find_split(mteb.get_task("T2Retrieval")) == "dev"
    missing = EvalEntry(path=DataRef(str(catalogue)), only=("stss",))
    assert Mteb(data=(missing,)).preview(Glance()) is None, "its check names the fault"
