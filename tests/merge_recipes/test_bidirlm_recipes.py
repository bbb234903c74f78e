"""BidirLM's recipes: tables and arms, a composition of real shapes, and a tiny model on the whole way."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import pytest
import torch
from emberge import ModelRef
from emberge.data import load_catalogue
from emberge.merging import MergeInput, plan_merge
from emberge.model_folder import Checkpoint
from emberge.recipes import list_shipped_recipes
from emberge_bidirlm import (
    Composition,
    Specialist,
    build_encoder_config,
    build_encoder_layout,
    find_mask_token,
)
from emberge_encoder import Layout
from emberge_mteb.hub_tasks import build_hub_tasks
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from tests.support.model_headers import write_model
from tests.support.printed import group, hub_model, steps_of

TINY = list_shipped_recipes()["bidirlm/tiny"].path
OMNI = "bidirlm/omni"
TRUNK, VISION, AUDIO = "Qwen/Qwen3-1.7B", "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-ASR-1.7B-hf"


# By table: the number of tasks, and of kinds of task.
TABLES = {
    ("adapt", "scores"): (131, 9),
    ("omni", "text"): (131, 9),
    ("omni", "images"): (47, 7),
    ("omni", "sound"): (30, 7),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), TABLES)
def test_tables_are_pinned_to_tasks_that_mteb_has(name: str, table: str) -> None:
    (evaluator,) = steps_of(f"bidirlm/{name}")[table].evaluators
    tasks = build_hub_tasks((), evaluator.benchmark, (), evaluator.only)
    assert [task.metadata.name for task in tasks] == list(evaluator.only)
    whole = {t.metadata.name: t for t in mteb.get_benchmark(evaluator.benchmark).tasks}
    assert all(task.hf_subsets == whole[task.metadata.name].hf_subsets for task in tasks)
    left = {whole[name].metadata.type for name in {*whole} - {*evaluator.only}}
    assert all(kind.startswith("VisualSTS") for kind in left)
    kinds = {task.metadata.type for task in tasks}
    # The paper counts both kinds of retrieval as one.
    kinds = {kind.replace("Any2AnyMultilingual", "Any2Any") for kind in kinds}
    assert (len(tasks), len(kinds)) == TABLES[name, table]


def test_no_text_is_trained_on_and_scored() -> None:
    folder = list_shipped_recipes()["bidirlm/adapt"].path.parent / "corpora"
    halves = [
        {(one.hub, one.subset, one.split) for one in load_catalogue(folder / name).train}
        for name in ("adaptation", "domains")
    ]
    assert not halves[0] & halves[1]


def test_variants_differ_in_attention_masking_and_pairs_alone() -> None:
    recipe = "bidirlm/variants"
    scorings = [*group(recipe, "embedding"), *group(recipe, "tuned")]
    for scored in (one for one in scorings if hasattr(one, "models")):
        names = [str(entry.model).partition(".")[0] for entry in scored.models]
        assert names[1:] == ["$bi", "$bi_mntp", "$bi_pairs", "$bi_mntp_pairs"]
        model = names[0] + str(scored.models[0].model)[len(names[0]) :]
        for entry in scored.models[1:]:
            assert hub_model(recipe, entry.model) == model
    for before, after in (("bi", "bi_pairs"), ("bi_mntp", "bi_mntp_pairs")):
        assert all(one.model.step.startswith(f"{before}.") for one in group(recipe, after))
    plain, adapted = (
        [dataclasses.replace(one, model=ModelRef("x")) for one in group(recipe, name)]
        for name in ("bi_pairs", "bi_mntp_pairs")
    )
    assert plain == adapted


class Folders:
    """Folders of models by reference, with configs and headers alone."""

    def __init__(self, root: Path, found: Mapping[str, Any]) -> None:
        self.root, self.found = root, found

    def __call__(self, reference: ModelRef) -> list[MergeInput]:
        return [MergeInput(reference.text, self.folder(reference))]

    def folder(self, reference: ModelRef) -> Path:
        model = hub_model(OMNI, reference)
        step = reference.step
        while step is not None and (model_of := self.found[step]).model.step is not None:
            step = model_of.model.step
        folder = self.root / model / ("encoder" if step is not None else "causal")
        if not folder.is_dir():
            write_model(folder, model)
            if step is not None:
                self._switch(folder, self.found[step])
        return folder

    def _switch(self, folder: Path, step: Any) -> None:
        """Write what `as_encoder` writes beside the weights."""
        checkpoint = Checkpoint(folder)
        mask = find_mask_token(checkpoint, step.mask_token)
        assert mask is not None
        for name, content in {
            **mask.read_files(checkpoint),
            "config.json": build_encoder_config(checkpoint),
        }.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        Layout(build_encoder_layout(checkpoint), folder, 1024)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def composition(step: Any, root: Path, found: Mapping[str, Any]) -> Composition:
    """The plan of a step `compose`; the merged trunk has the config and the tensors of its first model."""
    folders = Folders(root, found)
    merged = found[step.text.step]
    text = merged.models[0].model if hasattr(merged, "models") else step.text
    kinds = {"vision": VISION, "audio": AUDIO}
    specialists = {
        k: Specialist(k, Checkpoint(folders.folder(ModelRef(m)))) for k, m in kinds.items()
    }  # type: ignore[arg-type]
    return Composition(
        Checkpoint(folders.folder(text)),
        specialists,
        step.rope_from,
        {"text": "text", **kinds},  # type: ignore[arg-type]
    )


def test_the_omnimodal_model_and_its_control_differ_in_their_trunk_alone() -> None:
    (merged,) = group(OMNI, "merged")
    assert [hub_model(OMNI, entry.model) for entry in merged.models] == [TRUNK, VISION, AUDIO]
    for name, trunk in (("composed", "merged"), ("unmerged", "adapted")):
        own = group(OMNI, name)
        assert [one.rope_from for one in own] == ["text", "vision"]
        assert {(str(one.text), str(one.vision), str(one.audio)) for one in own} == {
            (f"${trunk}", VISION, AUDIO)
        }
    for name, begun in (("trained", "composed"), ("trained_unmerged", "unmerged")):
        for one in group(OMNI, name):
            assert one.model.step.startswith(f"{begun}.")
            assert one.keep_last * one.save_steps >= one.max_steps - one.save_steps
    plain = [
        [dataclasses.replace(one, model=ModelRef("x")) for one in group(OMNI, name)]
        for name in ("trained", "trained_unmerged")
    ]
    assert plain[0] == plain[1], "the control differs in its trunk alone"


def test_every_tensor_of_a_specialist_is_merged_or_copied(root: Path) -> None:
    found = steps_of(OMNI)
    plan = composition(found["composed.base=text"], root, found)
    (merged,) = group(OMNI, "merged")
    merging = plan_merge(merged._build_request(Folders(root, found)))
    assert not merging.problems
    assert not merging.future_models
    named = {tensor.name for tensor in plan.tensors}
    assert len(named) == len(plan.tensors)
    for kind, model in (("vision", VISION), ("audio", AUDIO)):
        tower = set(plan.specialists[kind].tower)  # type: ignore[index]
        assert {plan.composed_class.rename_tensor(one) for one in tower} <= named
        assert tower == set(merging.omitted[model]), "what the merge leaves out is copied"


@pytest.mark.parametrize("base", ["text", "vision"])
def test_the_composed_tensors_are_those_of_the_class(base: str, root: Path) -> None:
    found = steps_of(OMNI)
    plan = composition(found[f"composed.base={base}"], root, found)
    config = AutoConfig.for_model(**plan.files["config.json"])
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert type(model).__name__ == "Qwen3OmniMoeThinkerModel"
    shapes = {one: tuple(tensor.shape) for one, tensor in model.state_dict().items()}
    assert {tensor.name: tensor.spec.shape for tensor in plan.tensors} == shapes
    # As many as the released model has.
    assert sum(tensor.spec.elements for tensor in plan.tensors) == 2_445_009_536


@pytest.mark.parametrize(("base", "theta"), [("text", 1e6), ("vision", 5e6)])
def test_ids_and_positions_are_the_real_models(base: str, theta: float, root: Path) -> None:
    found = steps_of(OMNI)
    plan = composition(found[f"composed.base={base}"], root, found)
    config = plan.files["config.json"]
    ids = {key: place for key, place in config.items() if key.endswith("_token_id")}
    assert ids == {
        **{"image_token_id": 151655, "video_token_id": 151656},
        **{"vision_start_token_id": 151652, "vision_end_token_id": 151653},
        **{"audio_token_id": 151676, "audio_start_token_id": 151669, "audio_end_token_id": 151670},
    }
    text = config["text_config"]
    assert text["rope_parameters"] == {
        **{"rope_type": "default", "rope_theta": theta},
        **{"mrope_interleaved": True, "mrope_section": [24, 20, 20]},
    }
    assert (text["vocab_size"], text["num_experts"], text["is_causal"]) == (151936, 0, False)
    assert text["mlp_only_layers"] == list(range(28))
    assert config["audio_config"]["max_source_positions"] == 1500
    assert [(token.text, token.id) for token in plan.tokens.new_tokens] == [
        *(("<|audio_start|>", 151669), ("<|audio_end|>", 151670), ("<|audio_pad|>", 151676)),
    ]


# ── the whole way ───────────────────────────────────────────────────────────────────────────────


SEARCHES = ("images_to_texts", "texts_to_images", "clips_to_texts", "texts_to_clips")


def assert_media_are_found(out: Path) -> None:
    """Images and clips are found by what they show, and by neither control."""
    found = json.loads((out / "media" / "scores.json").read_text())["values"]
    omni, blind, unpaired, composed = (
        found[f"{name}.seed=0"] for name in ("omni", "blind", "unpaired", "composed")
    )
    for task in SEARCHES:
        rest = max(one[task] for one in (blind, unpaired, composed))
        # Queries of 20 to 24 captions: the mean of a control has a standard error of about 0.06.
        assert omni[task] > rest + 0.12, task


@pytest.mark.slow
def test_a_tiny_model_goes_the_whole_way(tmp_path: Path) -> None:
    """With one of the recipe's three seeds."""
    folder = TINY.parent
    recipe = tmp_path / "tiny.yaml"
    text = TINY.read_text("utf-8")
    for old, new in {
        "{seed: [0, 1, 2]}": "{seed: [0]}",
        "[../python_texts.py, media.py]": f"[{folder.parent}/python_texts.py, {folder}/media.py]",
    }.items():
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(text, "utf-8")
    command = [sys.executable, "-m", "emberge", "run", str(recipe), "--out", str(tmp_path)]
    command += ["--allow-plugins"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "trained")
    assert tokenizer.mask_token is not None
    model = SentenceTransformer(str(tmp_path / "trained"), device="cpu")
    assert model[0].auto_model.config.is_causal is False
    merged, *parts = (
        load_file(tmp_path / name / "model.safetensors")
        for name in ("merged", "adapted", "encoder")
    )
    for name, tensor in merged.items():
        half = (parts[0][name].double() + parts[1][name].double()) / 2
        # Two products and a sum, each rounded once to 24 bits.
        bound = 3 * 2.0**-24 * (parts[0][name].abs() + parts[1][name].abs())
        assert ((tensor.double() - half).abs() <= bound).all(), name
    assert_media_are_found(tmp_path)
    assert (tmp_path / "kept/scores.md").is_file()
    assert (tmp_path / "report/report.html").is_file()
