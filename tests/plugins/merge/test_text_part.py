"""Of a model with more than text, `part: text` takes the trunk alone: its numbers, its config, its tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Plugins, RecipeError, check_recipe, load_recipe, run_recipe
from safetensors.torch import load_file
from transformers import AutoModel

from tests.support import tiny
from tests.support.json_files import changing
from tests.support.result_folders import artifact_of

ROPE = {"rope_type": "default", "rope_theta": 500000.0}
RECIPE = """
steps:
  merged:
    merge:
      models:
      - {model: ./causal, weight: 0.5}
      - {model: ./vision, part: text, weight: 0.25}
      - {model: ./guard, part: text, weight: 0.25}
      strategy: linear
"""


@pytest.fixture(scope="module")
def specialists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three real classes around one kind of trunk, with the prefixes `model.` and `model.language_model.`."""
    root = tmp_path_factory.mktemp("specialists")
    tiny.transformer(root / "causal", "AutoModelForCausalLM", "qwen3", rope_parameters=ROPE)
    task = "AutoModelForSequenceClassification"
    tiny.transformer(root / "guard", task, "qwen3", seed=1, num_labels=2, rope_parameters=ROPE)
    tiny.transformer(root / "vision", "AutoModelForImageTextToText", "qwen3-vl", seed=2)
    return root


@pytest.fixture
def place(specialists: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(specialists, tmp_path / "place"))


def run(place: Path, text: str, plugins: Plugins) -> Path:
    (place / "recipe.yaml").write_text(text)
    return run_recipe(load_recipe(place / "recipe.yaml", plugins), place / "out", plugins)[
        "merged"
    ].path


def faults(place: Path, text: str, plugins: Plugins) -> str:
    (place / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        check_recipe(load_recipe(place / "recipe.yaml", plugins), plugins).raise_errors()
    assert not (place / "out").exists()
    return str(caught.value)


def trunk(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    own = load_file(folder / "model.safetensors")
    return {n.removeprefix(prefix): t for n, t in own.items() if n.startswith(prefix)}


def change_text(folder: Path, **changes: Any) -> None:
    with changing(folder / "config.json") as config:
        config["text_config"] |= changes


def test_trunks_of_three_classes_merge_as_by_hand(place: Path, plugins: Plugins) -> None:
    """What is left out is named in plan and artifact."""
    (place / "recipe.yaml").write_text(RECIPE)
    report = check_recipe(load_recipe(place / "recipe.yaml", plugins), plugins)
    plan = "\n".join(line for note in report.notes for line in note.lines)
    count = len(trunk(place / "vision", "model.visual."))
    left = {
        "./vision": f"lm_head (1 tensor), visual ({count} tensors)",
        "./guard": "score (1 tensor)",
    }
    result = run(place, RECIPE, plugins)
    artifact = artifact_of(result)
    assert artifact.details.left_out == left
    assert all(f"'{Path(name).name}': {what}" in plan for name, what in left.items())
    parts = [
        (0.5, trunk(place / "causal", "model.")),
        (0.25, trunk(place / "vision", "model.language_model.")),
        (0.25, trunk(place / "guard", "model.")),
    ]
    loaded = AutoModel.from_pretrained(result)
    assert type(loaded).__name__ == "Qwen3Model"
    found = loaded.state_dict()
    assert found.keys() == parts[0][1].keys()
    for name, tensor in found.items():
        terms = torch.stack([weight * part[name].double() for weight, part in parts])
        # Three products and two sums, each rounded once to 24 bits.
        bound = 5 * 2.0**-24 * terms.abs().sum(0)
        assert ((tensor.double() - terms.sum(0)).abs() <= bound).all(), name


def test_a_wrapped_template_keeps_its_towers_and_head(place: Path, plugins: Plugins) -> None:
    text = """
    steps:
      merged:
        merge:
          models: [{model: ./vision}, {model: ./causal, part: text}]
          strategy: linear
    """
    result = run(place, text, plugins)
    old, new = (load_file(one / "model.safetensors") for one in (place / "vision", result))
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name]) == name.startswith(("model.visual.", "lm_head.")), (
            name
        )


def _other_rope(place: Path) -> None:
    change_text(place / "vision", rope_parameters={**ROPE, "rope_theta": 1e6})


def _other_family(place: Path) -> None:
    change_text(place / "vision", model_type="mistral")


def _other_tokens(place: Path) -> None:
    with changing(place / "vision" / "tokenizer.json") as whole:
        vocabulary = whole["model"]["vocab"]
        a, b = "bank", "card"
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_rope, ["rope_theta", "500000.0", "1000000.0", "template"]),
        (_other_family, ["qwen3", "mistral"]),
        (_other_tokens, ["bank", "card"]),
    ],
)
def test_trunks_that_do_not_fit_are_refused_before_any_work(
    change: Callable[[Path], None], words: list[str], place: Path, plugins: Plugins
) -> None:
    change(place)
    fault = faults(place, RECIPE, plugins)
    assert "recipe.yaml:" in fault
    for word in ("vision", *words):
        assert word in fault


def test_a_wrapped_model_whose_trunk_alone_is_taken_gives_no_template(
    place: Path, plugins: Plugins
) -> None:
    first = RECIPE.replace("./causal", "./vision, part: text", 1).replace(
        "./vision, part: text, weight: 0.25", "./causal, weight: 0.25"
    )
    fault = faults(place, first, plugins)
    assert "'vision'" in fault
    assert "'template'" in fault
