"""Weights by layer: their gradients, the fit, and the choice between them and one weight for all layers."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from emberge import (
    EmbergeError,
    Machine,
    PerTensor,
    Plugins,
    Problem,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.encoding import TextEmbedder
from emberge.merging import FoundWeights
from emberge.model_folder import model_fingerprint
from emberge_encoder import TextEncoder
from emberge_merge import Linear
from emberge_weights.layers.fit import fit_coefficients, nearest_on_simplex
from emberge_weights.layers.labelled_texts import order_loss, ranking_loss
from emberge_weights.layers.layer_search import LayerSearch, open_members
from emberge_weights.layers.member_tensors import (
    Blocks,
    MemberTensors,
    MixedForward,
    blocks_of,
    member_tensors,
)
from emberge_weights.members import SetEmbedder, before_length_one, plan_members
from emberge_weights.unit_scores import UnitScores
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.plugins.weights.places import write_sets
from tests.support import tiny
from tests.support.bench import Bench, model_at, sentence, write_rows
from tests.support.result_folders import folders
from tests.support.tolerance import assert_combined

BARE = before_length_one(TextEncoder())
TEXTS = ["sort the list", "open a file", "a card of the bank account"]
RECIPE = """
steps:
  found:
    find_weights:
      models: [./a, ./b]
      data: {path: ./sets, only: [likeness]}
      candidates: 20
      anchors: 0
      layers: true
  merged:
    merge: {models: [./a, ./b], weights: $found}
"""


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


# ── gradients ───────────────────────────────────────────────────────────────────────────────────


def opened(folders: Sequence[Path], root: Path) -> tuple[Blocks, MixedForward]:
    models = [model_at(folder) for folder in folders]
    plan = plan_members(models, Linear())
    return open_members(models, TextEncoder(), plan, Bench(root))


def test_one_member_in_every_block_embeds_as_that_member(berts: list[Path], tmp_path: Path) -> None:
    blocks, forward = opened(berts, tmp_path)
    texts = forward.encoder.tokenise(TEXTS, prompt="", max_length=None)
    for number, folder in enumerate(berts):
        alone = torch.zeros(len(blocks), len(berts))
        alone[:, number] = 1
        with torch.no_grad():
            found = forward.at(alone)(texts)
        own = TextEmbedder(BARE.load(folder, device="cpu", dtype="float32")).embed(TEXTS)
        np.testing.assert_allclose(found.numpy(), own, rtol=0, atol=1e-4)


def test_gradients_of_coefficients_are_those_of_the_merge(
    berts: list[Path], tmp_path: Path
) -> None:
    models = [model_at(folder) for folder in berts]
    blocks = blocks_of(plan_members(models, Linear()))
    members, encoder = member_tensors(models, TextEncoder(), blocks, Bench(tmp_path))
    exact: MemberTensors = dataclasses.replace(members, rows=members.rows.astype(np.float64))
    encoder.module.double()
    embed = MixedForward(encoder, exact).at
    texts = encoder.tokenise(TEXTS[:2], prompt="", max_length=None)
    torch.manual_seed(0)
    coefficients = torch.rand(len(blocks), 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: embed(given)(texts).sum(1), [coefficients])


def test_a_layer_is_a_block_and_weights_by_block_reach_its_tensors(bert: Path) -> None:
    plan = plan_members([model_at(bert), model_at(tiny_sibling(bert))], Linear())
    blocks = blocks_of(plan)
    assert list(blocks.names)[:4] == ["embeddings", "layers.0", "layers.1", "layers.2"]
    values = [0.1 * place for place in range(len(blocks))]
    weights = blocks.weights(values, 0.5)
    for name, place in blocks.place.items():
        assert weights.at(name, 0.0) == values[place]
        assert weights.at(f"bert.{name}", 0.0) == values[place]
    assert weights.at("classifier.weight", 0.0) == 0.5
    assert len(weights.plain()) == len(blocks) + 1


def tiny_sibling(bert: Path) -> Path:
    return tiny.checkpoint(bert.parent / "sibling-of-blocks", seed=7, like=bert)


@pytest.mark.parametrize(
    "names",
    [
        {"layers.1.norm.weight": 0, "layers.10.norm.weight": 1, "norm.weight": 2},
        # No beginning tells these apart.
        {"layers.1.norm.weight": 0, "visual.layers.1.norm.weight": 1, "a.b": 2, "c": 2},
    ],
)
def test_names_within_names_are_told_apart(names: dict[str, int]) -> None:
    weights = Blocks(["layers.1", "other.1", "final"], names).weights([0.1, 0.2, 0.3], 0.0)
    for name, place in names.items():
        assert weights.at(name, 0.0) == [0.1, 0.2, 0.3][place]


# ── losses and steps ────────────────────────────────────────────────────────────────────────────


def test_soft_scores_fall_when_what_belongs_together_comes_nearer() -> None:
    relevant = torch.tensor([[True, False, False], [False, True, False]])
    far = torch.tensor([[0.2, 0.5, 0.5], [0.5, 0.2, 0.5]])
    near = torch.where(relevant, 0.9, far)
    assert ranking_loss(near, relevant) < ranking_loss(far, relevant)
    gold = torch.tensor([3.0, 1.0, 2.0, 1.0])
    assert order_loss(torch.tensor([0.9, 0.1, 0.5, 0.2]), gold) < 0.01
    assert order_loss(torch.tensor([0.1, 0.9, 0.5, 0.8]), gold) > 10
    # Pairs that are alike in gold are not compared.
    assert order_loss(torch.tensor([0.9, 0.1]), torch.tensor([1.0, 1.0])) == 0


def test_coefficients_of_a_block_stay_weights() -> None:
    rows = torch.tensor([[0.5, 0.7, -0.4], [0.2, 0.3, 0.5], [2.0, 0.0, 0.0]])
    expected = torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(nearest_on_simplex(rows), expected)


def fitted(gradient: Sequence[Sequence[float]]) -> list[list[float]]:
    """Coefficients after a few steps down a loss that has this gradient everywhere."""
    slope = torch.tensor(gradient)
    one = SimpleNamespace(
        name="set",
        batches=lambda units, _: iter([units] * 3),
        loss=lambda embed, _: (embed * slope).sum(),
    )
    forward: Any = SimpleNamespace(at=lambda coefficients: coefficients)
    sets: Any = [one]
    start = np.full(len(gradient[0]), 1 / len(gradient[0]))
    units = [np.arange(2)]
    with TemporaryDirectory() as work:
        return fit_coefficients(
            start, len(gradient), forward, sets, units, seed=0, rounds=3, work=Path(work)
        ).tolist()


def test_only_differences_between_the_members_of_a_block_move_its_weights() -> None:
    # A loss that falls with both members falls faster with the first.
    first, second = fitted([[-3.0, -1.0], [-3.0, -1.0]])
    assert first == second
    assert first[0] > 0.55
    assert sum(first) == pytest.approx(1)
    # Of a block that the loss does not depend on, or not by member, the weights stay.
    moved, unseen, common = fitted([[-3.0, -1.0], [0.0, 0.0], [2.0, 2.0]])
    assert moved == first
    assert unseen == common == [0.5, 0.5]


# ── the choice ──────────────────────────────────────────────────────────────────────────────────


def spoiled(folder: Path, source: Path, layer: int, seed: int) -> Path:
    """Write a copy of a model in which one layer is noise."""
    shutil.copytree(source, folder)
    state = load_file(folder / "model.safetensors")
    torch.manual_seed(seed)
    for name, tensor in state.items():
        if f"layer.{layer}." in name and tensor.dim() == 2:
            state[name] = tensor + 0.3 * torch.randn_like(tensor)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_planted(place: Path, source: Path, *, shuffle: int | None = None) -> None:
    """Write two copies of a model, each with another layer of noise, and pairs that it scores itself."""
    spoiled(place / "a", source, 0, 1)
    spoiled(place / "b", source, 2, 2)
    rng = random.Random(5)
    pairs = [(sentence(rng, 5), sentence(rng, 5)) for _ in range(300)]
    embedder = TextEmbedder(TextEncoder().load(source, device="cpu", dtype="float32"))
    left, right = (embedder.embed([pair[side] for pair in pairs]) for side in (0, 1))
    gold = (left * right).sum(1).tolist()
    if shuffle is not None:
        random.Random(shuffle).shuffle(gold)
    rows = [
        {"query": first, "pos": [second], "pos_scores": [score]}
        for (first, second), score in zip(pairs, gold, strict=True)
    ]
    write_sets(place / "sets", ("likeness",))
    write_rows(place / "sets" / "likeness" / "dev.jsonl.gz", rows)


def problems(place: Path, text: str, plugins: Plugins) -> list[Problem]:
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    return list(check_recipe(recipe, plugins).errors)


def run(place: Path, text: str, plugins: Plugins) -> dict[str, Path]:
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    return folders(run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True))


@pytest.mark.slow
def test_a_layer_that_is_noise_in_one_member_gets_less_of_it_and_the_merge_has_it_so(
    bert: Path, tmp_path: Path, plugins: Plugins
) -> None:
    write_planted(tmp_path, bert)
    results = run(tmp_path, RECIPE, plugins)
    found = FoundWeights.read(results["found"])
    layers = found.facts["layers"]
    assert layers["clear"]
    assert layers["gain"]["low"] > 0
    # Whatever one weight for all layers is, it is not below 0.3 for both.
    assert layers["weights"]["a"]["layers.0"] < 0.3
    assert layers["weights"]["b"]["layers.2"] < 0.3
    assert "By layer" in (results["found"] / "weights.md").read_text()
    folders = [tmp_path / "a", tmp_path / "b"]
    a, b, merged = (
        load_file(folder / "model.safetensors") for folder in (*folders, results["merged"])
    )
    schedules = [found.of(model_fingerprint(folder)) for folder in folders]
    for name in ("encoder.layer.0.output.dense.weight", "encoder.layer.2.output.dense.weight"):
        weights = [schedule.at(name, 0.0) for schedule in schedules]
        assert_combined(merged[name], [a[name], b[name]], weights)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [1, 2])
def test_on_shuffled_labels_each_member_keeps_one_weight(
    bert: Path, tmp_path: Path, plugins: Plugins, shuffle: int
) -> None:
    write_planted(tmp_path, bert, shuffle=shuffle)
    text = RECIPE.partition("  merged:")[0]
    found = FoundWeights.read(run(tmp_path, text, plugins)["found"])
    assert not found.facts["layers"]["clear"]
    assert not found.by_tensor
    assert list(found.weights.values()) == [0.5, 0.5]


def test_a_fit_gains_nothing_by_units_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[NDArray[np.int64]]] = []

    class Memorising(LayerSearch):
        """A search whose fits are better on the units that they have seen, and on no other."""

        def _label_texts(self, number: int, flat: Any) -> Any:
            return None

        def _require_following(self, labelled: Any) -> None:
            return None

        def _fit_half(self, flat: Any, labelled: Any, units: Any, name: str) -> Any:
            seen.append(units)
            return np.full((1, 2), float(name) / 2)

        def _embed_merge(self, weights: Any, embedder: Any) -> Any:
            return []

        def _score_set(self, number: int, merged: Any) -> UnitScores:
            values = np.zeros((3, 40), np.float32)
            for place, units in enumerate(seen, 1):
                values[place, units[number]] = 1
            return UnitScores("set", "mean", "query", values)

    monkeypatch.setattr("emberge_weights.layers.layer_search.merge_and_embed", lambda *_: [])
    anything: Any = SimpleNamespace(queries=range(40))
    search = Memorising(
        models=[],
        members=[],
        sets=[anything],
        blocks=Blocks(["all"], {"a.weight": 0}),
        forward=anything,
        strategy=Linear(),
        embedder=SetEmbedder(
            sets=[], backbone=TextEncoder(), prompt=None, max_length=None, workspace=anything
        ),
        seed=0,
    )
    layers = search.run(np.array([0.5, 0.5]))
    assert sorted([*seen[0][0], *seen[1][0]]) == list(range(40))
    assert (layers.gain.difference, layers.gain.clear) == (0, False)
    np.testing.assert_array_equal(layers.coefficients, [[0.75, 0.75]])
    assert layers.blocks == ["all"]
    assert layers.by_tensor == [search.blocks.weights([0.75], 0.5)] * 2
    assert len(seen) == 2


# ── bad input ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("metric: agreement", "metric: task"),
        ("strategy: multi_slerp", "'linear'"),
        ("backbone: {text_encoder: {torch_compile: true}}", "torch_compile"),
        ("backbone: {text_encoder: {lora: {rank: 4}}}", "'lora'"),
    ],
)
def test_what_gradients_by_layer_cannot_serve_is_refused_before_work(
    bert: Path, berts: list[Path], tmp_path: Path, plugins: Plugins, option: str, fix: str
) -> None:
    for name, folder in zip("ab", berts, strict=False):
        (tmp_path / name).symlink_to(folder)
    write_sets(tmp_path / "sets", ("likeness",))
    text = RECIPE.replace("layers: true", f"layers: true\n      {option}")
    found = "\n".join(str(problem) for problem in problems(tmp_path, text, plugins))
    assert fix in found
    assert "'layers'" in found


def test_a_model_that_ignores_the_parameters_it_is_given_is_refused(
    berts: list[Path], tmp_path: Path
) -> None:
    from emberge_weights.layers.layer_search import LayerSearch
    from emberge_weights.members import SetEmbedder
    from emberge_weights.weight_sets import WeightSet

    models = [model_at(folder) for folder in berts[:2]]
    one = WeightSet("likeness", "sts", "spearman", "spearman", TEXTS, TEXTS[::-1], gold=[1, 2, 3])
    blocks, forward = opened(berts[:2], tmp_path)
    own = forward.encoder
    fixed = BARE.load(berts[1], device="cpu", dtype="float32")

    class Deaf:
        """An encoder that computes with a copy of its weights."""

        module, prompts = own.module, own.prompts
        tokenise, collate = staticmethod(own.tokenise), staticmethod(own.collate)
        __call__ = staticmethod(fixed.__call__)

    embedder = SetEmbedder(
        sets=[one], backbone=TextEncoder(), prompt=None, max_length=None, workspace=Bench(tmp_path)
    )
    members = [embedder.member(model) for model in models]
    search = LayerSearch(
        models=models,
        members=members,
        sets=[one],
        blocks=blocks,
        forward=MixedForward(Deaf(), forward.members),  # type: ignore[arg-type]
        strategy=Linear(),
        embedder=embedder,
        seed=0,
    )
    with pytest.raises(EmbergeError, match="leave 'layers' out"):
        search.run(np.array([0.5, 0.5]))


def test_a_model_has_weights_by_layer_once(
    bert: Path, berts: list[Path], tmp_path: Path, plugins: Plugins
) -> None:
    for name, folder in zip("ab", berts, strict=False):
        (tmp_path / name).symlink_to(folder)
    prints = [model_fingerprint(folder) for folder in berts[:2]]
    layered = PerTensor([{"filter": "layer.0.", "value": 0.25}, {"value": 0.75}])
    FoundWeights(
        weights=dict.fromkeys(prints, 0.5), by_tensor={prints[0]: layered}, names={}
    ).write(tmp_path)
    again = FoundWeights.read(tmp_path)
    assert again.of(prints[0]) == layered
    assert again.of(prints[1]) == PerTensor(0.5)
    assert "by_tensor" not in json.loads((tmp_path / "weights.json").read_text())["models"][1]
    merge = "steps: {{merged: {{merge: {{models: [{}, ./b], weights: ./weights.json}}}}}}"
    twice = "{model: ./a, weight: [{filter: layer.1., value: 2}, {value: 1}]}"
    assert problems(tmp_path, merge.format("{model: ./a, weight: 2}"), plugins) == []
    (problem,) = problems(tmp_path, merge.format(twice), plugins)
    assert "'./a' has a weight by tensor" in str(problem)
