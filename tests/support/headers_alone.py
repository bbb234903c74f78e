"""Models of any size whose files have a header and no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorSpec, encode_header

Shapes = Mapping[str, tuple[int, ...]]


def folder_of(root: Path, config: Mapping[str, Any], shapes: Shapes) -> Checkpoint:
    """A model of these shapes, whose file has a header and no byte of weights on the disk."""
    specs = [TensorSpec(name, shape, "bfloat16") for name, shape in shapes.items()]
    header, _ = encode_header(specs, {})
    with (root / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(spec.nbytes for spec in specs))
    (root / "config.json").write_text(json.dumps(config))
    return Checkpoint(root)
