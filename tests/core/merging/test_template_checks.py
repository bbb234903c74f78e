"""A template whose config does not describe its weights is found from the headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emberge.merging.template_checks import describe_size_problems
from emberge.model_folder import Checkpoint

from tests.support.model_headers import write_hole

CONFIG = {"model_type": "acme", "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2}
SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
    "encoder.layer.0.intermediate.dense.weight": (6, 4),
    "encoder.layer.1.intermediate.dense.weight": (6, 4),
}


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({}, None),
        ({"vocab_size": 9}, "vocab_size is 9, and 'embeddings.word_embeddings.weight' has 10 rows"),
        ({"vocab_size": 9, "pad_vocab_size_multiple": 5}, None),
        ({"vocab_size": 10, "pad_vocab_size_multiple": 4}, None),
        ({"num_hidden_layers": 1}, None),
        ({"num_hidden_layers": 3}, "has 3 layers, and the weights have 2"),
        ({"num_hidden_layers": 3, "model_type": "albert"}, None),
    ],
)
def test_a_config_with_other_sizes_than_the_tensors_is_a_problem(
    config: dict[str, Any], fault: str | None, tmp_path: Path
) -> None:
    checkpoint = folder_of(tmp_path, {**CONFIG, **config}, SHAPES)
    found = list(describe_size_problems(checkpoint, checkpoint.tensor_names))
    assert [str(fault) in one for one in found] == [True] * (fault is not None), found
    if fault and fault.startswith("vocab_size"):
        assert (
            list(describe_size_problems(checkpoint, checkpoint.tensor_names, vocabulary=False))
            == []
        )


def folder_of(root: Path, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> Checkpoint:
    """A model of these shapes, whose file has a header and no byte of weights on the disk."""
    write_hole(root / "model.safetensors", shapes)
    (root / "config.json").write_text(json.dumps(config))
    return Checkpoint(root)
