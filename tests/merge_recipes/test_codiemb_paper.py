"""CoDiEmb's recipe has the paper's options, tasks and data, and says what is not native."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mteb
import pytest
from emberge import DataEntry, DataRef, Example, load_plugins, load_recipe
from emberge.data import load_catalogue, load_datasets
from emberge.recipes import shipped_recipes
from emberge_mteb import in_domain_tasks, instruction_of, split_of
from emberge_mteb.hub_tasks import hub_tasks

from tests.support.hub_models import check, write_hub
from tests.support.loopback_hub import Hub, serving

PAPER = shipped_recipes()["codiemb/paper"]
CORPUS = PAPER.path.parent / "corpora/chinese"
# Methods' B.5: per device, of 8; what the decoder has in place of MiniCPM-Embedding's options.
BGE, E5, DECODER = "BAAI/bge-large-zh-v1.5", "intfloat/multilingual-e5-large", "Qwen/Qwen3-0.6B"
OPTIONS = {
    BGE: {"retrieval": 64, "sts": 32, "rate": 5e-5, "epochs": 5, "length": 512},
    E5: {"retrieval": 64, "sts": 32, "rate": 5e-5, "epochs": 5, "length": 512},
    DECODER: {"retrieval": 28, "sts": 32, "rate": 4e-5, "epochs": 4, "length": 1024},
}
ROLES = ("joint", "retrieval", "similarity")
RETRIEVAL = ("T2", "MMarco", "Du", "Covid", "Cmedqa", "Ecom", "Medical", "Video")
SIMILARITY = ("LCQMC", "PAWSX", "AFQMC", "QBQTC", "ATEC", "BQ", "STSB")
UNSEEN = {"MMarcoRetrieval", "CovidRetrieval", "MedicalRetrieval", "QBQTC"}


@cache
def steps(model: str) -> dict[str, Any]:
    """The concrete steps of one backbone by what they are for."""
    found = {}
    for one in load_recipe(PAPER.path, plugins=load_plugins()).steps:
        role, _, instance = one.id.partition(".")
        of_decoder = role.startswith("decoder_")
        if of_decoder if model == DECODER else model.rpartition("/")[2] in instance:
            found[role.removeprefix("decoder_")] = one.step
    return found


def catalogue() -> Any:
    return load_catalogue(CORPUS)


# ── the recipe ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", OPTIONS)
def test_the_papers_options_stand_in_the_recipe(model: str) -> None:
    paper = OPTIONS[model]
    for role in ROLES:
        train = steps(model)[role]
        assert train.model.text == model
        assert (train.learning_rate, train.epochs) == (paper["rate"], paper["epochs"])
        assert (train.schedule, train.warmup_ratio, train.weight_decay) == ("linear", 0.03, 0)
        assert (train.positives, train.hard_negatives) == (2, 4)
        assert train.max_length.default == paper["length"]
        assert train.precision == ("bfloat16" if model == DECODER else "float32")
        sizes = train.sampler[-1].batch_size.by_task
        assert sizes == {task: 8 * paper[task] for task in ("retrieval", "sts")}
        assert train.data[0].prompt == "Instruction: {instruction} Query: "
    assert load_recipe(PAPER.path, plugins=load_plugins()).seed == 49


@pytest.mark.parametrize("model", OPTIONS)
def test_each_kind_of_task_has_the_papers_losses(model: str) -> None:
    for role in ROLES:
        losses = steps(model)[role].loss.by_task
        (infonce,) = losses["retrieval"]
        assert (infonce.temperature, infonce.slot_reduction) == (0.02, "mean")
        assert (infonce.positives_in_denominator, infonce.cross_rank) == ("all", True)
        similarity = {type(one).__name__: one for one in losses["sts"]}
        assert {name: one.weight for name, one in similarity.items()} == {
            "Pearson": 2,
            "RankKL": 5,
            "PRO": 0.5,
            "MidNCE": 1,
        }
        assert not any(one.cross_rank for one in losses["sts"])  # eqs. 4, 6, 8 and 9 on one device
        assert similarity["RankKL"].temperature == similarity["PRO"].temperature == 0.05
        (inner,) = similarity["MidNCE"].loss
        assert (similarity["MidNCE"].layer, inner.temperature) == (0.5, 0.02)


@pytest.mark.parametrize("model", OPTIONS)
def test_the_decoder_alone_attends_another_way_than_its_own(model: str) -> None:
    attention = "bidirectional" if model == DECODER else "as is"
    assert {steps(model)[role].backbone.attention for role in ROLES} == {attention}


@pytest.mark.parametrize("model", OPTIONS)
def test_specialists_train_on_one_kind_of_task_with_the_same_options(model: str) -> None:
    joint, retrieval, similarity = (steps(model)[role] for role in ROLES)
    assert [retrieval.sampler[0].tasks, similarity.sampler[0].tasks] == [("retrieval",), ("sts",)]
    assert len(joint.sampler) == 1
    for one in (retrieval, similarity):
        assert dataclasses.replace(one, sampler=joint.sampler) == joint


@pytest.mark.parametrize("model", OPTIONS)
def test_the_joint_runs_best_checkpoints_are_fused_by_the_specialists_norms(model: str) -> None:
    found = steps(model)
    groups = {entry.group: entry.model.step for entry in found["fused"].models}
    assert {group: found_role(model, step) for group, step in groups.items()} == {
        "retrieval": "best_retrieval",
        "similarity": "best_similarity",
    }
    for kind, chosen in (("retrieval", "best_retrieval"), ("sts", "best_similarity")):
        (checkpoints,) = found[chosen].models
        assert (found_role(model, checkpoints.step), checkpoints.part) == ("joint", "checkpoints")
        assert (found[chosen].tasks, found[chosen].top) == (kind, 3)
        assert found[chosen].top < found["joint"].keep_last == OPTIONS[model]["epochs"]
    assert found["fused"].base.text == found["norms"].base.text == model
    group, softmax = found["fused"].strategy
    assert type(group.by).__name__ == "Linear"
    assert found_role(model, softmax.deltas.step) == "norms"
    named = {name: found_role(model, one.step) for name, one in found["norms"].models.items()}
    assert named == {"retrieval": "retrieval", "similarity": "similarity"}


def found_role(model: str, step: str | None) -> str:
    role, _, instance = str(step).partition(".")
    assert model == DECODER or model.rpartition("/")[2] in instance, "of another backbone"
    return role.removeprefix("decoder_")


@pytest.mark.slow
@pytest.mark.parametrize("model", OPTIONS)
def test_the_papers_15_tasks_are_scored(model: str) -> None:
    (evaluator,) = steps(model)["scores"].evaluators
    tasks = hub_tasks((), evaluator.benchmark, (), evaluator.only)
    assert evaluator.benchmark == "MTEB(cmn, v1)"
    by_kind = {
        kind: {task.metadata.name for task in tasks if task.metadata.type == kind}
        for kind in ("Retrieval", "STS")
    }
    assert by_kind == {
        "Retrieval": {f"{name}Retrieval" for name in RETRIEVAL},
        "STS": set(SIMILARITY),
    }
    assert len(tasks) == 15
    assert evaluator.max_length == OPTIONS[model]["length"]
    demanded = {
        (rule.tasks, found_role(model, other.step), rule.margin)
        for rule in steps(model)["scores"].require
        for other in (*rule.not_worse_than, *rule.better_than)
    }
    assert demanded == {("retrieval", "retrieval", 1), ("sts", "similarity", 0)}


@pytest.mark.parametrize("model", OPTIONS)
def test_nothing_that_is_scored_chooses_a_checkpoint(model: str) -> None:
    """Development data is of the tasks' kinds, and none of the rows that mteb scores or a training sees."""
    (scored,) = steps(model)["scores"].evaluators
    tasks = {t.metadata.name: t for t in hub_tasks((), scored.benchmark, (), scored.only)}
    (asked,) = steps(model)["best_retrieval"].evaluators
    (miracl,) = hub_tasks(asked.tasks, asked.benchmark, asked.languages, asked.only)
    assert (miracl.metadata.type, miracl.hf_subsets, split_of(miracl)) == (
        "Retrieval",
        ["zh"],
        "dev",
    )
    assert not {miracl.metadata.name} & {*tasks, *trained_on()}
    (held_out,) = steps(model)["best_similarity"].evaluators
    (entry,) = held_out.data
    sources = {one.name: one for one in catalogue().train}
    assert entry.split == "validation"
    for name in entry.only:
        assert sources[name].split == "train"
        assert "validation" not in tasks[name].eval_splits
    # AFQMC's validation split is scored, and QBQTC has no other than that.
    assert {*SIMILARITY} - {*entry.only} == {"AFQMC", "QBQTC"}


# ── the corpus ──────────────────────────────────────────────────────────────────────────────────


def trained_on() -> tuple[str, ...]:
    entry = DataEntry(path=DataRef(str(CORPUS)))
    return in_domain_tasks([entry], lambda reference: Path(reference.text))


def test_the_corpus_has_the_papers_sets_that_are_on_the_hub() -> None:
    sets = catalogue().train
    assert Counter(one.task for one in sets) == {"retrieval": 5, "sts": 6}
    assert {one.score_range for one in sets if one.task == "retrieval"} == {None}
    ranges = {one.name: one.score_range for one in sets if one.task == "sts"}
    assert ranges == {name: (0, 1) for name in SIMILARITY if name not in ("QBQTC", "STSB")} | {
        "STSB": (0, 5)
    }
    assert {one.name for one in sets if one.symmetric} == set(ranges)
    assert all(re.fullmatch("[0-9a-f]{40}", str(one.revision)) for one in sets)
    assert "QBQTC" in (CORPUS / "datasets.yaml").read_text("utf-8").partition("format:")[0]


def test_what_is_trained_on_is_in_domain_and_the_rest_is_not() -> None:
    scored = {f"{name}Retrieval" for name in RETRIEVAL} | set(SIMILARITY)
    assert scored - set(trained_on()) == UNSEEN
    for name in trained_on():
        assert mteb.get_task(name).metadata.name == name


def test_training_and_scoring_have_the_same_instruction_and_revision() -> None:
    for one in catalogue().train:
        task = mteb.get_task((one.ind_tasks or ())[0])
        assert one.instruction == instruction_of(task)
        if one.hub == task.metadata.dataset["path"]:
            assert one.revision == task.metadata.dataset["revision"]


SCORES = {"STSB": (0, 2, 5)}


@pytest.fixture
def hub_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders laid out as the hub's datasets, a folder a subset; AFQMC's scores are classes."""
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for one in catalogue().train:
        folder = tmp_path / str(one.hub)
        for split in ("train", "validation") if one.task == "sts" else ("train",):
            table = datasets.Dataset.from_dict(_columns(one, split))
            if one.name == "AFQMC":
                table = table.cast_column("score", datasets.ClassLabel(names=["0", "1"]))
            path = folder / (one.subset or "data") / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table.to_parquet(path)
    _name_subsets(tmp_path / "BeastyZ/cmteb_retrieval")
    return tmp_path


def _columns(one: DataEntry, split: str) -> dict[str, list[Any]]:
    if one.task == "retrieval":
        return {
            "query": [f"{one.name} {i}" for i in range(3)],
            "positive": [[f"正{i}", f"p{i}"] for i in range(3)],
            "negative": [[f"n{i}"] for i in range(3)],
            "answers": [[] for _ in range(3)],
        }
    return {
        "sentence1": [f"{one.name} {split} {i}" for i in range(3)],
        "sentence2": [f"句{i}" for i in range(3)],
        "score": list(SCORES.get(str(one.name), (0, 1, 1))),
    }


def _name_subsets(folder: Path) -> None:
    """Write the heading of a dataset's page, which says what its subsets are."""
    names = sorted(path.name for path in folder.iterdir())
    configs = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train-*"}]}
        for name in names
    ]
    heading = json.dumps({"configs": configs})  # YAML too
    (folder / "README.md").write_text(f"---\n{heading}\n---\n", encoding="utf-8")


def read(entries: Sequence[DataEntry], hub: Path) -> Iterator[tuple[DataEntry, Any]]:
    prompt = steps(BGE)["joint"].data[0].prompt
    copied = [
        dataclasses.replace(
            one,
            hub=str(hub / str(one.hub)),
            revision=None,
            prompt=prompt.replace("{instruction}", one.instruction),
        )
        for one in entries
    ]
    found = load_datasets(copied, readers=(), resolve=_nowhere, store=hub / "store")
    return zip(entries, found, strict=True)


def _nowhere(reference: DataRef) -> Path:
    raise AssertionError(f"{reference}: all of this data is on the hub")


def test_every_set_is_read_as_the_hub_lays_it_out(hub_copies: Path) -> None:
    for one, dataset in read(catalogue().train, hub_copies):
        assert (dataset.info.name, dataset.info.task) == (one.name, one.task)
        assert dataset.prompt == f"Instruction: {one.instruction} Query: "
        assert (len(dataset), dataset.symmetric) == (3, one.task == "sts")
        if one.task == "retrieval":
            assert dataset[1] == Example(f"{one.name} 1", ("正1", "p1"), ("n1",))
        else:
            assert dataset[1].anchor == f"{one.name} train 1"
            assert dataset[1].positives == ("句1",)
            # mid_nce's matches are scores of 1: STSB's 5, and the others' 1.
            scores = [row.positive_scores for row in dataset]
            assert scores == ([(0,), (0.4,), (1,)] if one.name == "STSB" else [(0,), (1,), (1,)])


# ── check ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The backbones by configs and tokenizers alone, and MiniCPM-Embedding by its config."""
    root = write_hub(tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("built"))
    other = root / "openbmb/MiniCPM-Embedding/main"
    other.mkdir(parents=True)
    config = {
        "architectures": ["MiniCPM"],
        "auto_map": {
            "AutoConfig": "configuration_minicpm.MiniCPMConfig",
            "AutoModel": "modeling_minicpm.MiniCPMModel",
        },
        "hidden_size": 2304,
        "is_causal": False,
        "num_hidden_layers": 40,
    }
    (other / "config.json").write_text(json.dumps(config))
    with serving(root) as served:
        yield served


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe with the paper's own decoder."""
    text = PAPER.path.read_text("utf-8").replace(DECODER, "openbmb/MiniCPM-Embedding")
    recipe = tmp_path_factory.mktemp("foreign") / "paper.yaml"
    recipe.write_text(text.replace("path: corpora/", f"path: {PAPER.path.parent}/corpora/"))
    return recipe


@pytest.fixture(scope="module")
def checked(
    hub: Hub, foreign: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """What `check` says of both recipes."""
    return check(["codiemb/paper", str(foreign)], tmp_path_factory.mktemp("cache"), hub.url)


@pytest.mark.slow
def test_check_passes_by_configs_alone(hub: Hub, checked: dict[str, tuple[int, str]]) -> None:
    code, said = checked["codiemb/paper"]
    assert code == 0, said
    assert "could not be seen" not in said
    assert not [name for name in hub.fetched if name.endswith((".safetensors", ".bin"))]
    assert "11 of 15 tasks are in domain: " in said
    switched = "attention: bidirectional; the model's own is causal"
    assert f"decoder_joint and 5 more steps: not native\n  {switched}\n" in said
    assert said.count("not native") == 1
    for one in catalogue().train:
        subset = f"/{one.subset}" if one.subset else ""
        assert f"dataset {one.hub}{subset}[train]@{one.revision}" in said
    assert said.count("[validation]") == 5  # each once, for encoders and decoder


@pytest.mark.slow
def test_check_names_the_backbone_that_has_no_native_class(
    foreign: Path, checked: dict[str, tuple[int, str]]
) -> None:
    """Which is why the paper's decoder is not in the recipe, as its header says."""
    assert "MiniCPM-Embedding: transformers has no class for it" in PAPER.description
    code, said = checked[str(foreign)]
    assert code == 2, said
    assert "openbmb--MiniCPM-Embedding" in said
    assert "has no class MiniCPM" in said
    assert "its code lies beside the weights and is not run" in said


def test_the_header_says_how_it_is_run_and_what_is_not_native() -> None:
    assert "emberge run codiemb/paper --out" in PAPER.description
    for word in ("What it makes", "Command", "Time", "Result", "Not native"):
        assert re.search(rf"^{word}\b", PAPER.description, re.MULTILINE), word


@pytest.mark.parametrize("model", OPTIONS)
def test_arms_that_are_compared_differ_in_losses_or_batches_alone(model: str) -> None:
    found = steps(model)
    for arm in ("infonce", "cosent"):
        assert dataclasses.replace(found[arm], loss=found["joint"].loss) == found["joint"]
    (cosent,) = found["cosent"].loss.default
    assert (type(cosent).__name__, cosent.unscored) == ("CoSENT", True)
    (of_pairs,) = found["infonce"].loss.by_task["sts"]
    (inner,) = of_pairs.loss
    assert (of_pairs.layer, inner.temperature) == (None, 0.02)
    assert dataclasses.replace(found["mixed"], sampler=found["joint"].sampler) == found["joint"]
    (mixed,) = found["mixed"].sampler
    assert (mixed.draws, mixed.batch_size) == (8, found["joint"].sampler[-1].batch_size)
