"""Folders without safetensors of a whole model: pickles, adapters and exports to other formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
# States of a training are beside weights and are none.
_STATES = ("optimizer", "scheduler", "rng_state", "scaler", "training_args")
_EXPORTS = (
    ("GGUF", ("*.gguf", "gguf/*.gguf")),
    ("ONNX", ("*.onnx", "onnx/*.onnx")),
    ("OpenVINO", ("openvino*.xml", "openvino/*.xml")),
    ("Core ML", ("*.mlpackage", "coreml/*", "*.mlmodel")),
    ("TensorFlow", ("tf_model*.h5", "*.ckpt.index", "saved_model/*")),
    ("Flax", ("flax_model*.msgpack",)),
    ("Rust", ("rust_model.ot",)),
)


def pickles_in(folder: Path) -> Iterator[Path]:
    """Yield pickles of weights, without those that are a training's state."""
    for pattern in _PICKLES:
        found = sorted(folder.glob(pattern))
        yield from (path for path in found if not path.name.startswith(_STATES))


def other_format(folder: Path) -> str | None:
    """Return an error that names the other format of a folder and the remedy; None if there is no format."""
    if (folder / "adapter_config.json").is_file():
        base = _base_of(folder / "adapter_config.json") or "BASE"
        return (
            f"{folder}: is an adapter (adapter_config.json), not a whole model; name it with its base, "
            f"as {base}+{folder}"
        )
    for kind, patterns in _EXPORTS:
        found = next((path for p in patterns for path in sorted(folder.glob(p))), None)
        if found is not None:
            return (
                f"{folder}: has only an export to {kind} ({found.relative_to(folder).as_posix()}), which "
                "cannot be merged; get the model's safetensors"
            )
    strange = sorted(p.name for p in folder.glob("*.safetensors"))
    if strange:
        return (
            f"{folder}: has {strange[0]}, but neither model.safetensors nor an index of it; "
            "get the missing file, or rename this one if it is the whole model"
        )
    return None


def _base_of(config: Path) -> str | None:
    try:
        base = json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return base if isinstance(base, str) and base else None
