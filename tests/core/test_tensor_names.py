"""Names of tensors: prefixes are found in the names themselves, and each tensor has a layer and a depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint
from emberge.tensor_names import (
    TensorNames,
    find_layer,
    find_layer_number,
    find_prefix,
    is_vocabulary,
    measure_depths,
)
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


def test_a_trunk_is_selected_without_towers_and_heads(tmp_path: Path) -> None:
    """Its names lose the prefix of their class, and a wrapper's, which no result has."""
    tensors = {
        "module.lm_head.weight": torch.zeros(4, 2),
        "module.model.language_model.embed_tokens.weight": torch.zeros(4, 2),
        "module.model.language_model.norm.weight": torch.zeros(2),
        "module.model.visual.merger.norm.weight": torch.zeros(3),
    }
    names = names_of(tmp_path, tensors)
    trunk, others = {"embed_tokens.weight", "norm.weight"}, {HEAD, "visual.merger.norm.weight"}
    assert set(names.specs) == trunk | others
    assert names.name_in_result(names.specs[HEAD]) == HEAD
    selected = names.select_text_trunk()
    assert (set(selected.specs), set(selected.left_out)) == (trunk, others)


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
    number = layer.removeprefix("layers.")
    assert find_layer_number(name) == (None if number == layer else int(number))


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
    substitute = names.find_substitute(HEAD)
    assert (substitute is None) == (tied is False)


def test_a_head_is_shared_by_models_of_one_task_and_a_pooler_by_all(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(4, 2) for name in (BERT, "bert.pooler.w", "classifier.w")}
    tasks = ("BertForSequenceClassification", "BertForTokenClassification")
    one, other = (names_of(tmp_path, tensors, architectures=[task]) for task in tasks)
    assert one.shares_head(one, "classifier.w")
    assert not one.shares_head(other, "classifier.w")
    assert one.shares_head(other, "pooler.w")


def test_embeddings_heads_and_their_biases_have_a_row_for_each_token() -> None:
    names = ("embed_tokens.weight", "shared.weight", HEAD, "cls.predictions.bias")
    assert all(map(is_vocabulary, names))
    assert not any(map(is_vocabulary, ("norm.weight", "pooler.dense.weight", "layers.0.bias")))
