"""Layers that texts choose: measured in memory as they would be cut, and kept with what each costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    CheckpointError,
    DataEntry,
    DataError,
    DataRef,
    EmbergeError,
    ModelRef,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.contracts import LayeredEncoder
from emberge.encoding import TextEmbedder
from emberge.model_folder import Checkpoint
from emberge.numerics import unit_rows
from emberge.results import read_artifact
from emberge_encoder import TextEncoder
from emberge_smaller import BestLayers, CutLayers, LayerStack, choose_best
from safetensors.torch import load_file, save_file

from tests.support import tiny
from tests.support.bench import Bench
from tests.support.killed_steps import contents
from tests.support.layered import LAYERS, model_of
from tests.support.training_data import texts

TEXTS = [row.anchor for row in texts(24).rows]


def _deep(folder: Path, *, seed: int = 0, architecture: str = "bert") -> Path:
    """A model each of whose layers changes embeddings much, unlike those of a random model."""
    tiny.checkpoint(folder, architecture, seed=seed, num_hidden_layers=LAYERS)
    weights = load_file(folder / "model.safetensors")
    grown = {n: w * 6 if "layer" in n and w.ndim > 1 else w for n, w in weights.items()}
    save_file(grown, folder / "model.safetensors", {"format": "pt"})
    return folder


def _embedder(folder: Path) -> TextEmbedder:
    return TextEmbedder(TextEncoder().load(folder, device="cpu", dtype="float32"))


def _cut(folder: Path, root: Path, layers: Any) -> Path:
    bench = Bench(root)
    CutLayers(model=ModelRef(str(folder)), layers=layers, backbone=TextEncoder()).run(bench)
    return bench.folder


def _cosine(whole: Path, part: Path) -> float:
    rows = [unit_rows(_embedder(folder).embed(TEXTS)) for folder in (whole, part)]
    return float((rows[0] * rows[1]).sum(1, dtype=np.float64).mean())


@pytest.mark.parametrize(
    "architecture", ["bert", "xlm-roberta", "mpnet", "modernbert", "qwen3", "gemma3", "llama"]
)
def test_a_model_without_layers_embeds_like_one_that_is_cut(
    architecture: str, tmp_path: Path
) -> None:
    whole = model_of(tmp_path / "whole", architecture)
    if not (whole / "modules.json").is_file():
        tiny.write_modules(whole, 32, pooling="last")
    embedder = _embedder(whole)
    assert isinstance(embedder.encoder, LayeredEncoder)
    before = embedder.embed(TEXTS)
    with embedder.encoder.without_layers([1, 2]):
        found = embedder.embed(TEXTS)
    part = _embedder(_cut(whole, tmp_path / "run", (0, 3))).embed(TEXTS)
    np.testing.assert_allclose(found, part, atol=2e-6)
    assert np.abs(found - before).max() > 1e-4
    np.testing.assert_array_equal(embedder.embed(TEXTS), before)


def _choose(folder: Path, number: int, root: Path, some: Sequence[str] = TEXTS) -> Any:
    stack = LayerStack(Checkpoint(folder))
    return choose_best(stack, number, some, TextEncoder(), Bench(root))


def test_the_layer_that_costs_least_goes_first(tmp_path: Path) -> None:
    whole = _deep(tmp_path / "whole")
    choice = _choose(whole, 3, tmp_path / "choice")
    by_hand = {}
    for layer in range(LAYERS):
        numbers = tuple(n for n in range(LAYERS) if n != layer)
        by_hand[str(layer)] = _cosine(whole, _cut(whole, tmp_path / str(layer), numbers))
    (removal,) = choice.removals
    assert removal.cosine_without == pytest.approx(by_hand, rel=0, abs=2e-6)
    assert str(removal.layer) == max(by_hand, key=lambda layer: by_hand[layer])
    assert len(set(by_hand.values())) == LAYERS


def _opposed(folder: Path) -> Path:
    """A model whose layers 0 and 2 undo each other, so that without one of them it is another model."""
    tiny.checkpoint(folder, num_hidden_layers=LAYERS)
    weights = load_file(folder / "model.safetensors")
    for name, values in weights.items():
        number = name.partition("layer.")[2][:1]
        if number and values.ndim > 1:
            weights[name] = values * (3 if number in "13" else 0)
    push = torch.randn(32, generator=torch.Generator().manual_seed(0))
    push = (push - push.mean()) / push.std(unbiased=False)
    weights["encoder.layer.0.output.dense.bias"] = push
    weights["encoder.layer.2.output.dense.bias"] = -push / 2**0.5  # the norm between them divides
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_layers_spread_evenly_are_taken_if_the_search_ends_worse(tmp_path: Path) -> None:
    choice = _choose(_opposed(tmp_path / "whole"), 2, tmp_path / "choice")
    assert choice.removals[-1].cosine < choice.even_cosine == choice.cosine
    assert choice.layers == choice.even == (1, 3)


def test_of_layers_that_cost_the_same_the_earlier_goes(tmp_path: Path) -> None:
    """Layers 1 and 2 are equal: the model without one is the model without the other."""
    whole = _deep(tmp_path / "whole")
    weights = load_file(whole / "model.safetensors")
    for name in [name for name in weights if ".layer.1." in name]:
        if weights[name].ndim > 1:
            weights[name] = weights[name] * 0
        weights[name.replace(".layer.1.", ".layer.2.")] = weights[name].clone()
    save_file(weights, whole / "model.safetensors", {"format": "pt"})
    choice = _choose(whole, 3, tmp_path / "choice")
    assert choice.removals[0].cosine_without["1"] == choice.removals[0].cosine_without["2"]
    assert choice.removals[0].layer == 1
    assert (choice.even, choice.even_cosine) == ((0, 1, 3), choice.cosine)
    assert choice.layers == (0, 2, 3)


def test_the_first_layer_stays_where_no_other_takes_its_place(tmp_path: Path) -> None:
    whole = tiny.checkpoint(tmp_path / "whole", "modernbert", num_hidden_layers=LAYERS)
    choice = _choose(whole, 2, tmp_path / "choice")
    assert choice.layers[0] == 0
    assert all("0" not in removal.cosine_without for removal in choice.removals)


def test_few_of_many_texts_are_measured(tmp_path: Path) -> None:
    whole = _deep(tmp_path / "whole")
    many = [f"{text} {number}" for number in range(20) for text in TEXTS]
    assert _choose(whole, 3, tmp_path / "choice", many).texts == 256
    assert _choose(whole, 3, tmp_path / "choice").texts == len(TEXTS)


def test_the_texts_that_are_measured_are_spread_over_all(tmp_path: Path) -> None:
    """Of 512 texts every second one."""
    whole = _deep(tmp_path / "whole")
    many = [f"{TEXTS[number % 24]} {TEXTS[number // 24]}" for number in range(512)]
    choice = _choose(whole, 3, tmp_path / "choice", many)
    assert choice == _choose(whole, 3, tmp_path / "again", many[::2])
    assert choice != _choose(whole, 3, tmp_path / "first", many[:256])


# ── in recipes ──────────────────────────────────────────────────────────────────────────────────

CUT = """
steps:
  small:
    cut_layers: {model: ./whole, layers: %s}
"""
STUDENT = """
steps:
  small:
    distil:
      teachers: ./whole
      student: {layers: {best: 2}}
      data: {path: read.jsonl, task: text}
      sampler: {batch_shuffle: {batch_size: 8}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model of four layers, a file of texts, and one of none."""
    _deep(tmp_path / "whole")
    rows = [json.dumps({"text": text}) + "\n" for text in TEXTS]
    (tmp_path / "read.jsonl").write_text("".join(rows))
    (tmp_path / "blank.jsonl").write_text(json.dumps({"text": " "}) + "\n")
    return tmp_path


def _recipe(place: Path, text: str) -> Any:
    plugins = load_plugins()
    return parse_recipe(text, plugins, path=place / "recipe.yaml"), plugins


def _run(place: Path, text: str, out: str = "out") -> Path:
    recipe, plugins = _recipe(place, text)
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    return run_recipe(recipe, place / out, plugins, quiet=True)["small"].path


@pytest.mark.parametrize("text", [CUT % "{best: 2}, data: {path: read.jsonl, task: text}", STUDENT])
def test_a_recipe_takes_the_best_and_keeps_the_costs(place: Path, text: str) -> None:
    wanted = _choose(place / "whole", 2, place / "choice")
    assert wanted.layers != wanted.even
    result = _run(place, text)
    details = read_artifact(result).details
    assert (
        details["chosen_layers"]
        == json.loads(json.dumps(wanted.as_details(LAYERS)))["chosen_layers"]
    )
    (figure,) = [one for one in details["figures"] if one["title"] == "Layers"]
    assert figure["lines"]["series"]["removed by cost"][1:] == [r.cosine for r in wanted.removals]
    config = json.loads((result / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert contents(_run(place, text, "again")) == contents(result)
    if text is not STUDENT:
        found = load_file(result / "model.safetensors")
        before = load_file(place / "whole" / "model.safetensors")
        for new, old in enumerate(wanted.layers):
            name = "encoder.layer.%d.output.dense.weight"
            assert torch.equal(found[name % new], before[name % old])


def test_a_teacher_that_reads_few_tokens_chooses_layers_by_them(place: Path) -> None:
    more = "      teacher_length: 4\n      epochs: 1\n      learning_rate: 0\n"
    details = read_artifact(_run(place, STUDENT + more)).details
    stack = LayerStack(Checkpoint(place / "whole"))
    short, whole = (
        choose_best(stack, 2, TEXTS, TextEncoder(), Bench(place / f"{length}"), max_length=length)
        for length in (4, None)
    )
    assert details["chosen_layers"]["cosine"] == short.cosine != whole.cosine


def test_the_student_begins_with_the_best_layers(place: Path) -> None:
    result = _run(place, STUDENT + "      epochs: 1\n      learning_rate: 0\n")
    wanted = _choose(place / "whole", 2, place / "choice")
    cut = _cut(place / "whole", place / "cut", wanted.layers)
    found, expected = (load_file(f / "model.safetensors") for f in (result, cut))
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(found[name], expected[name])


@pytest.mark.parametrize(
    ("layers", "fix"),
    [
        ("{best: 5}, data: {path: read.jsonl, task: text}", "from 1 to 4"),
        ("{best: 0}, data: {path: read.jsonl, task: text}", "at least 1"),
        ("{best: 2}", "give 'data'"),
        ("2, data: {path: read.jsonl, task: text}", "best"),
        ("{best: 2}, data: {path: missing.jsonl, task: text}", "missing.jsonl"),
        ("{worst: 2}, data: {path: read.jsonl, task: text}", "best"),
    ],
)
def test_a_mistake_is_an_error_before_the_work(place: Path, layers: str, fix: str) -> None:
    try:
        recipe, plugins = _recipe(place, CUT % layers)
        errors = "\n".join(map(str, check_recipe(recipe, plugins).errors))
    except EmbergeError as error:
        errors = str(error)
    assert fix in errors


def test_a_student_of_more_layers_than_there_are_is_an_error(place: Path) -> None:
    recipe, plugins = _recipe(place, STUDENT.replace("best: 2", "best: 5"))
    assert "from 1 to 4" in "\n".join(map(str, check_recipe(recipe, plugins).errors))


def test_blank_texts_choose_nothing(place: Path) -> None:
    step = CutLayers(
        model=ModelRef(str(place / "whole")),
        layers=BestLayers(best=2),
        data=(DataEntry(path=DataRef(str(place / "blank.jsonl")), task="text"),),
        backbone=TextEncoder(),
    )
    with pytest.raises(DataError, match="text"):
        step.run(Bench(place / "bench"))


def test_a_model_that_cannot_leave_layers_out_is_refused(bert: Path, tmp_path: Path) -> None:
    class Bare:
        """An encoder that has an encoder's methods alone."""

        def __init__(self, encoder: Any) -> None:
            self._encoder = encoder

        def __getattr__(self, name: str) -> Any:
            if name == "without_layers":
                raise AttributeError(name)
            return getattr(self._encoder, name)

    class Backbone(TextEncoder):
        def load(self, *arguments: Any, **options: Any) -> Any:
            return Bare(super().load(*arguments, **options))

    stack = LayerStack(Checkpoint(bert))
    with pytest.raises(CheckpointError, match="by their numbers"):
        choose_best(stack, 2, TEXTS, Backbone(), Bench(tmp_path))
