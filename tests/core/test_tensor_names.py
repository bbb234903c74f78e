"""Names of tensors: prefixes are found in the names themselves, and each tensor has a layer and a depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_names import TensorNames, find_layer, find_prefix, measure_depths
from safetensors.torch import save_file
from torch import Tensor


def names_of(folder: Path, tensors: dict[str, Tensor], **config: Any) -> TensorNames:
    """Return the names in a model folder with these tensors and keys of its config."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", **config}))
    return Checkpoint(folder).tensor_names


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["embed_tokens.weight"], ""),
        (["model.embed_tokens.weight", "lm_head.weight"], "model."),
        (["model.language_model.embed_tokens.weight", "visual.pos_embed"], "model.language_model."),
        (["bert.embeddings.word_embeddings.weight"], "bert."),
        # Two towers: nobody can say which one is meant.
        (["a.embed_tokens.weight", "b.embed_tokens.weight"], ""),
        # The ending must be whole words.
        (["xembed_tokens.weight"], ""),
    ],
)
def test_the_prefix_is_what_precedes_the_only_embedding(names: list[str], prefix: str) -> None:
    assert find_prefix(names) == prefix


def test_a_towers_norm_is_not_the_trunks(tmp_path: Path) -> None:
    tensors = {
        "model.language_model.embed_tokens.weight": torch.zeros(4, 2),
        "model.language_model.norm.weight": torch.zeros(2),
        "model.visual.merger.norm.weight": torch.zeros(3),
    }
    names = names_of(tmp_path, tensors)
    assert set(names.specs) == {"embed_tokens.weight", "norm.weight", "visual.merger.norm.weight"}


def test_two_tensors_with_one_canonical_name_are_refused(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.zeros(4, 2),
        "model.norm.weight": torch.zeros(2),
        "norm.weight": torch.zeros(2),
    }
    with pytest.raises(CheckpointError, match=r"are both 'norm\.weight'"):
        names_of(tmp_path, tensors)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layers.7.mlp.up_proj.weight", "layers.7"),
        ("h.0.ln_1.weight", "layers.0"),
        ("visual.blocks.3.norm1.weight", "visual.blocks.3"),
        ("embed_tokens.weight", "embeddings"),
        ("norm.weight", "final"),
        ("pooler.dense.weight", "pooler"),
        ("2_Dense.linear.weight", "2_Dense"),
    ],
)
def test_every_tensor_has_a_layer(name: str, layer: str) -> None:
    assert find_layer(name) == layer


def test_depth_runs_from_the_first_layer_to_the_last_of_each_tower() -> None:
    found = measure_depths(
        ["embed_tokens.weight", *(f"layers.{i}.w" for i in range(5)), "visual.blocks.0.w"]
    )
    assert [found[f"layers.{i}.w"] for i in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert found["embed_tokens.weight"] == found["visual.blocks.0.w"] == 0


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BERT, COPY = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.mark.parametrize(
    ("stored", "tied", "heads", "tied_copies"),
    [
        ([EMBEDDING, HEAD], True, [HEAD], [HEAD]),
        ([EMBEDDING, HEAD], False, [HEAD], []),
        ([EMBEDDING, HEAD], None, [HEAD], []),  # the config does not say: what is stored is kept
        ([EMBEDDING], None, [], [HEAD]),
        ([BERT, COPY], None, [COPY], [COPY, HEAD]),
        ([BERT, "bert.pooler.w", "classifier.w"], True, ["classifier.w", "pooler.w"], [COPY, HEAD]),
        (
            [EMBEDDING, "visual.merger.w", "score.w"],
            None,
            ["score.w"],
            [HEAD],
        ),  # a tower is no head
    ],
)
def test_heads_and_tied_copies_follow_from_names_and_config(
    tmp_path: Path, stored: list[str], tied: bool | None, heads: list[str], tied_copies: list[str]
) -> None:
    tensors = {name: torch.zeros(4, 2) for name in stored}
    names = names_of(tmp_path, tensors, tie_word_embeddings=tied)
    assert sorted(names.heads) == heads
    copies = (COPY, HEAD) if stored[0] == BERT else (HEAD,)
    assert [name for name in copies if names.is_redundant(name)] == tied_copies
