"""The text trunk of a speech model merges with a causal model and a guard that has another head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from emberge import Plugins, check_recipe, load_plugins, parse_recipe, run_recipe
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from tests.support import tiny
from tests.support.decoders import decoder

ROPE = {"rope_type": "default", "rope_theta": 1e6}
SOUND = "<|audio_pad|>"
NAMES = ("causal", "speech", "guard")


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model, a Qwen3-ASR that knows one token more, and a guard that labels tokens."""
    root = tmp_path_factory.mktemp("models")
    decoder(root / "causal", "qwen3", head=True, rope_parameters=ROPE)
    size = len(AutoTokenizer.from_pretrained(root / "causal"))
    decoder(root / "speech", "qwen3_asr", rope_parameters=ROPE, vocab_size=size + 1)
    tokenizer = AutoTokenizer.from_pretrained(root / "speech")
    tokenizer.add_special_tokens({"additional_special_tokens": [SOUND]})
    assert tokenizer.convert_tokens_to_ids(SOUND) == size
    tokenizer.save_pretrained(root / "speech")
    task = "AutoModelForTokenClassification"
    tiny.transformer(
        *(root / "guard", task, "qwen3"),
        seed=1,
        num_labels=3,
        num_hidden_layers=2,
        rope_parameters=ROPE,
    )
    return root


def merge(models: Path, speech: Path, out: Path, plugins: Plugins) -> tuple[Path, str]:
    """Merge the three trunks; return the result and the lines of the plan."""
    text = f"""
    steps:
      merged:
        merge:
          models:
          - {{model: {models}/causal, weight: 0.5, name: causal}}
          - {{model: {speech}, part: text, weight: 0.25, name: speech}}
          - {{model: {models}/guard, part: text, weight: 0.25, name: guard}}
          strategy: linear
    """
    recipe = parse_recipe(text, plugins)
    report = check_recipe(recipe, plugins)
    report.raise_errors()
    plan = "\n".join(line for note in report.notes for line in note.lines)
    return run_recipe(recipe, out, plugins, quiet=True)["merged"].path, plan


def trunk(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    own = load_file(folder / "model.safetensors")
    return {n.removeprefix(prefix): t for n, t in own.items() if n.startswith(prefix)}


def require_mean(found: Mapping[str, torch.Tensor], models: Path) -> None:
    """Compare a merged trunk with means by hand, and the row of a token of one model with its own."""
    parts = [
        (0.5, trunk(models / "causal", "model.")),
        (0.25, trunk(models / "speech", "language_model.")),
        (0.25, trunk(models / "guard", "model.")),
    ]
    words = "embed_tokens.weight"
    rows = len(parts[0][1][words])
    assert torch.equal(found[words][rows], parts[1][1][words][rows])
    assert found.keys() == parts[0][1].keys()
    for name, tensor in found.items():
        same = slice(None, rows) if name == words else slice(None)
        terms = torch.stack([weight * part[name][same].double() for weight, part in parts])
        # Three products and two sums, each rounded once to 24 bits.
        bound = 5 * 2.0**-24 * terms.abs().sum(0)
        assert ((tensor[same].double() - terms.sum(0)).abs() <= bound).all(), name


@pytest.mark.parametrize("outer", ["", "thinker."])
def test_trunks_merge_as_by_hand_and_rows_by_token(
    outer: str, models: Path, tmp_path: Path, plugins: Plugins
) -> None:
    """Older checkpoints of Qwen3-ASR have one prefix more."""
    speech = tmp_path / "speech"
    speech.mkdir()
    for path in (models / "speech").iterdir():
        if path.suffix != ".safetensors":
            (speech / path.name).write_bytes(path.read_bytes())
    own = load_file(models / "speech/model.safetensors")
    renamed = {f"{outer}{name}": tensor for name, tensor in own.items()}
    save_file(renamed, speech / "model.safetensors", {"format": "pt"})
    result, plan = merge(models, speech, tmp_path / "out", plugins)
    loaded = AutoModel.from_pretrained(result)
    assert type(loaded).__name__ == "Qwen3Model"
    require_mean(loaded.state_dict(), models)
    after, before = (AutoTokenizer.from_pretrained(f) for f in (result, models / "causal"))
    assert after.convert_tokens_to_ids(SOUND) == len(before)
    assert SOUND in plan
    assert "1 from the models that know them" in plan
    assert "of 'guard': score (2 tensors)" in plan
    for left in ("audio_tower", "multi_modal_projector"):
        assert left in plan
