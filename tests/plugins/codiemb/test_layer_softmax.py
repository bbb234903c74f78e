"""Hierarchical fusion against a computation by hand, on real tiny models, in one streaming pass."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import FileRef, PerTensor, Stage, load_plugins
from emberge.merging import MergeInput, Statistics
from emberge.merging.statistics_file import StatisticsFile
from emberge.tensor_names import find_layer
from emberge_codiemb.layer_softmax import LayerSoftmax
from safetensors.torch import load_file
from torch import Tensor

from tests.support import tiny
from tests.support.chains import chain, merge_one
from tests.support.merges import merge_models
from tests.support.recipe_runs import run_checked
from tests.support.tolerance import assert_exact, assert_near, near

State = Mapping[str, Tensor]
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base, two retrieval and two similarity models; the last ones moved three times as far."""
    root = tmp_path_factory.mktemp("fusion")
    base = tiny.checkpoint(root / "base", "bert", num_hidden_layers=2)
    noises = {"ir_1": 0.05, "ir_2": 0.05, "sts_1": 0.15, "sts_2": 0.15}
    return [
        base,
        *(
            tiny.checkpoint(
                root / name, "bert", seed=i, like=base, noise=noise, num_hidden_layers=2
            )
            for i, (name, noise) in enumerate(noises.items(), 1)
        ),
    ]


@pytest.fixture(scope="module")
def states(family: list[Path]) -> list[State]:
    return [{n: t.double() for n, t in load_file(f / "model.safetensors").items()} for f in family]


def soups(states: Sequence[State]) -> list[State]:
    """Step 1 by hand: the mean of each group."""
    _, first, second, third, fourth = states
    return [{n: (a[n] + b[n]) / 2 for n in a} for a, b in ((first, second), (third, fourth))]


def norms_of(models: Sequence[State], base: State) -> dict[str, list[float]]:
    """Step 2 by hand: layer -> each model's delta norm."""
    squares: dict[str, list[float]] = {}
    for name, origin in base.items():
        found = squares.setdefault(find_layer(name), [0.0] * len(models))
        for i, model in enumerate(models):
            found[i] += float((model[name] - origin).square().sum())
    return {layer: [math.sqrt(s) for s in found] for layer, found in squares.items()}


def weighted(models: Sequence[State], shares: Mapping[str, Sequence[float]]) -> State:
    """Step 4 by hand."""
    return {
        name: sum(w * m[name] for w, m in zip(shares[find_layer(name)], models, strict=True))  # type: ignore[misc]
        for name in models[0]
    }


def softmax(values: Sequence[float], temperature: float = 1.0) -> list[float]:
    top = max(values)
    powers = [math.exp((v - top) / temperature) for v in values]
    return [p / sum(powers) for p in powers]


def fused(states: Sequence[State], family: Sequence[Path], out: Path, **options: Any) -> State:
    """The same by the runner in float64, from folders to a folder."""
    groups = ("ir", "ir", "sts", "sts")
    inputs = [
        MergeInput(f.name, f, PerTensor(1.0), group)
        for f, group in zip(family[1:], groups, strict=True)
    ]
    links: Sequence[Stage] = [*chain("group", by=chain("linear")[0]), LayerSoftmax(**options)]
    origin = MergeInput("base", family[0])
    exact: Any = {"dtype": "float64", "out_dtype": "float64"}
    merge_models(inputs, strategy=links, base=origin, out=out, **exact)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize(
    ("deltas", "options"),
    [
        ("measured", {"temperature": 0.5}),  # the printed formula of norms as they are
        ("measured", {"normalise": "mean"}),
        ("measured", {"normalise": "relative"}),  # to the base's layer
        ("of a file", {"normalise": "none"}),
        ("of a file", {"normalise": "relative"}),
    ],
)
def test_weights_are_the_softmax_of_a_layers_norms(
    deltas: str, options: dict[str, Any], states: list[State], family: list[Path], tmp_path: Path
) -> None:
    models, zero = soups(states), {n: torch.zeros_like(t) for n, t in states[0].items()}
    norms = norms_of(models, states[0])
    if deltas == "measured":
        # The model of sts moved further.
        assert all(n[1] > n[0] for layer, n in norms.items() if "layers" in layer)
    else:
        norms = {layer: [3.0 + i, 1.0] for i, layer in enumerate(norms)}
        told = {layer: dict(zip(("ir", "sts"), n, strict=True)) for layer, n in norms.items()}
        path = Statistics(told, measure="delta_norms").write(tmp_path)
        options = {**options, "deltas": FileRef(path.name, tmp_path)}
    sizes = dict.fromkeys(norms, 1.0)
    if options.get("normalise") == "mean":
        sizes = dict.fromkeys(norms, sum(map(sum, norms.values())) / (2 * len(norms)))
    elif options.get("normalise") == "relative":
        sizes = {layer: size for layer, (size,) in norms_of([states[0]], zero).items()}
    shares = {
        layer: softmax([v / sizes[layer] for v in n], options.get("temperature", 1.0))
        for layer, n in norms.items()
    }
    assert_exact(fused(states, family, tmp_path / "out", **options), weighted(models, shares))


def weights(norms: Sequence[float], **options: Any) -> list[float]:
    stage = LayerSoftmax(**options)
    known = {"layers.0": torch.tensor(norms, dtype=torch.float64)}
    return stage.compute_weights("layers.0", known, {}).tolist()


def test_the_softmax_of_norms() -> None:  # T-B10
    assert weights((3, 1))[0] == pytest.approx(0.880797078)
    assert weights((3, 1), temperature=0.5)[0] == pytest.approx(0.982013790)
    assert weights((2, 2)) == [0.5, 0.5]
    saturated = weights((30, 10))
    assert 1 - saturated[0] == pytest.approx(2.06e-9, rel=1e-2)
    assert weights((30, 10), normalise="mean")[0] == pytest.approx(0.731058579)


def test_layers_that_nobody_moved_are_averaged_evenly() -> None:
    assert weights((0, 0)) == [0.5, 0.5]
    frozen, moved = torch.zeros(2, dtype=torch.float64), torch.tensor([4.0, 2.0]).double()
    stage = LayerSoftmax(normalise="relative")
    norms = {"layers.0": frozen, "layers.1": moved}
    base = {"layers.0": torch.tensor(0.0), "layers.1": torch.tensor(2.0)}
    assert stage.compute_weights("layers.0", norms, base).tolist() == [0.5, 0.5]
    assert stage.compute_weights("layers.1", norms, base).tolist() == pytest.approx(softmax([2, 1]))


@pytest.mark.parametrize("rows", [1, 1 << 30], ids=["one row", "everything"])
def test_layers_are_measured_over_blocks(rows: int) -> None:
    base, first, second = (
        [[0.0, 0.0], [0.0, 0.0]],
        [[3.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [0.0, 1.0]],
    )
    share = 0.880797078
    merged = merge_one([LayerSoftmax(normalise="none")], [first, second], base, rows=rows)
    expected = torch.tensor([[3 * share, 0.0], [0.0, 1 - share]], dtype=torch.float64)
    torch.testing.assert_close(merged, expected, atol=1e-8, rtol=0)


RECIPE = """
steps:
  norms:
    measure_statistics:
      base: {base}
      models: {{ir: {ir_1}, sts: {sts_1}}}
  fused:
    merge:
      base: {base}
      models:
        - {{model: {ir_1}, group: ir}}
        - {{model: {ir_2}, group: ir}}
        - {{model: {sts_1}, group: sts}}
        - {{model: {sts_2}, group: sts}}
      strategy:
        - group: linear
        - layer_softmax: {{deltas: $norms}}
"""


def test_a_recipe_measures_specialists_and_fuses(
    states: list[State], family: list[Path], tmp_path: Path
) -> None:
    text = RECIPE.format(**{f.name: f for f in family})
    results = run_checked(tmp_path, text, load_plugins())
    statistics = StatisticsFile.open(results["norms"]).read()
    expected = norms_of([states[1], states[3]], states[0])
    longest = max(tensor.numel() for tensor in states[0].values())
    for layer, norms in expected.items():
        told = statistics.of(layer, "")
        assert [float(told["ir"]), float(told["sts"])] == near(norms, longest)
    assert set(statistics.models) == {"ir", "sts"}
    told = json.loads((results["norms"] / "artifact.json").read_text())
    (figure,) = told["figures"]
    drawn = figure["heat_map"]
    assert (drawn["rows"], drawn["columns"]) == (
        list(told["details"]["delta_norms"]),
        ["ir", "sts"],
    )
    for layer, row in zip(drawn["rows"], drawn["values"], strict=True):
        assert row == near(expected[layer], longest)
    assert statistics.base
    shares = {layer: softmax(n) for layer, n in expected.items()}
    merged = load_file(results["fused"] / "model.safetensors")
    for name, tensor in weighted(soups(states), shares).items():
        assert_near(merged[name], tensor, addends=tensor.numel(), name=name)
    artifact = json.loads((results["fused"] / "artifact.json").read_text())
    said = artifact["details"]["strategy"][-1]["layer_softmax"]
    assert said["deltas"] == "$norms"
    found = artifact["details"]["weights_by_layer"]
    assert found.keys() == shares.keys()
    for layer, weights in found.items():
        assert list(weights) == ["ir", "sts"]
        # The norms are a sum's rounding off, and a softmax moves by less than its inputs.
        size = max(expected[layer])
        assert list(weights.values()) == near(shares[layer], longest, size=size)
