"""What cannot be fused is named with the label or layer, and with what there is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError, Plugins, check_recipe, parse_recipe, run_recipe
from emberge.merging import Statistics
from emberge.model_folder import Checkpoint, hash_model
from emberge.tensor_names import find_layer

from tests.support import tiny
from tests.support.peft_adapters import save_adapter

LAYERS = ("embeddings", "layers.0", "layers.1", "pooler")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a base and two models of it."""
    root = tmp_path_factory.mktemp("family")
    base = tiny.checkpoint(root / "base", "bert", num_hidden_layers=2)
    for i, name in enumerate("ab", 1):
        tiny.checkpoint(root / name, "bert", seed=i, like=base, num_hidden_layers=2)
    names = Checkpoint(base).tensor_names
    assert {find_layer(name) for name in names.specs} == set(LAYERS)
    return root


def norms(
    folder: Path,
    labels: Iterable[str] = ("ir", "sts"),
    layers: Iterable[str] = LAYERS,
    base: str = "",
    measure: str = "delta_norms",
) -> None:
    """The file that recipes here name."""
    values = {layer: dict.fromkeys(labels, 1.0) for layer in layers}
    written = Statistics(values, measure=measure, base=base)
    written.write(folder, "norms.safetensors")


RECIPE = """
steps:
  fused:
    merge:
      base: {family}/base
      models: [{{model: {first}{one}}}, {{model: {family}/b, group: sts}}]
      strategy: [{links}layer_softmax: {{deltas: ./norms.safetensors}}]
"""


def recipe(
    family: Path, *, group: str = ", group: ir", links: str = "group, ", first: str = ""
) -> str:
    return RECIPE.format(family=family, one=group, links=links, first=first or family / "a")


def problems(text: str, place: Path, plugins: Plugins) -> list[str]:
    parsed = parse_recipe(text, plugins, path=place / "recipe.yaml")
    return [
        f"{p.where}: {p}" for p in check_recipe(parsed, plugins).problems if p.severity == "error"
    ]


def test_numbers_of_all_groups_and_layers_are_enough(
    family: Path, tmp_path: Path, plugins: Plugins
) -> None:
    """Others beside them do no harm; without groups the labels are the models' names."""
    base = hash_model(family / "base")
    norms(tmp_path, ("ir", "sts", "other"), (*LAYERS, "head"), base=base)
    assert problems(recipe(family), tmp_path, plugins) == []
    norms(tmp_path, ("a", "b"))
    assert problems(recipe(family, links=""), tmp_path, plugins) == []


# What the file holds, how the recipe is, and the words of the problem.
MISFITS: list[tuple[dict[str, Any], dict[str, str], tuple[str, ...]]] = [
    ({}, {"group": ""}, ("a' has no group", "group: …")),
    ({"measure": "fisher"}, {}, ("holds fisher", "measure: delta_norms")),
]


@pytest.mark.parametrize(("held", "changes", "words"), MISFITS)
def test_a_file_that_does_not_fit_the_merge_is_a_problem(
    held: dict[str, Any],
    changes: dict[str, str],
    words: tuple[str, ...],
    family: Path,
    tmp_path: Path,
    plugins: Plugins,
) -> None:
    norms(tmp_path, **held)
    (problem,) = problems(recipe(family, **changes), tmp_path, plugins)
    assert [word for word in words if word not in problem] == []


@pytest.mark.parametrize(
    ("held", "links", "said"),
    [
        ({"labels": ("ir", "stss")}, "group, ", "of 'sts' for embeddings; .* ir, stss"),
        ({}, "", "of 'a' for embeddings; .* ir, sts"),
        ({"layers": LAYERS[1:]}, "group, ", "of 'ir' for embeddings; .* nothing"),
        ({"layers": LAYERS[:2]}, "group, ", "of 'ir' for layers.1; .* nothing"),
    ],
)
def test_numbers_that_a_file_lacks_are_named_by_the_merge(
    held: dict[str, Any], links: str, said: str, family: Path, tmp_path: Path, plugins: Plugins
) -> None:
    norms(tmp_path, **held)
    parsed = parse_recipe(recipe(family, links=links), plugins, path=tmp_path / "recipe.yaml")
    with pytest.raises(CheckpointError, match=f"no delta norm {said}"):
        run_recipe(parsed, tmp_path / "out", plugins, quiet=True)
    assert not (tmp_path / "out" / "fused").exists()


@pytest.mark.parametrize("kind", ["of a step", "of a folder"])
def test_a_model_with_an_adapter_has_the_label_of_the_run(
    kind: str, family: Path, tmp_path: Path, plugins: Plugins
) -> None:
    """A step's model is called by the step, a folder's by both folders."""
    save_adapter(tmp_path / "lora", family / "base")
    made = (
        f"  made:\n    merge: {{models: [{family}/a, {family}/b], strategy: linear}}\n"
        if kind == "of a step"
        else ""
    )
    first, label = ("$made+./lora", "made") if made else (f"{family}/base+./lora", "base+lora")
    text = recipe(family, links="", first=first).replace("steps:\n", f"steps:\n{made}")
    norms(tmp_path, (label, "b"))
    assert problems(text, tmp_path, plugins) == []
    parsed = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
    run_recipe(parsed, tmp_path / "out", plugins, quiet=True)
    norms(tmp_path, (f"{label}s", "b"))
    with pytest.raises(CheckpointError, match=re.escape(f"of '{label}' for")):
        run_recipe(parsed, tmp_path / "again", plugins, quiet=True)
