"""Folders whose weights are not safetensors of a whole model: what they hold instead, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["other_format", "pickles_in"]

_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
# States of a training lie beside weights and are none.
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
    """Pickled weights, none of them a state of a training."""
    for pattern in _PICKLES:
        found = sorted(folder.glob(pattern))
        yield from (path for path in found if not path.name.startswith(_STATES))


def other_format(folder: Path) -> str | None:
    """What a folder without safetensors of its own holds, and what to do; None if there is nothing."""
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
                f"{folder}: holds only an export to {kind} ({found.relative_to(folder).as_posix()}), which "
                "cannot be merged; get the model's safetensors"
            )
    strange = sorted(p.name for p in folder.glob("*.safetensors"))
    if strange:
        return (
            f"{folder}: holds {strange[0]}, but neither model.safetensors nor an index of it; "
            "get the missing file, or rename this one if it is the whole model"
        )
    return None


def _base_of(config: Path) -> str | None:
    try:
        base = json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return base if isinstance(base, str) and base else None
