"""The files of a SentenceTransformers folder: which modules there are, and how to write them again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError

CLASSIC = "sentence_transformers.models."
TRUNK_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Our words for pooling, and the words and the flags of the field's config files.
POOLING = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "cls": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
    "weighted_mean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
    ".onnx",
    ".ckpt",
    ".index.json",
)
# Stock modules that may stand after a transformer, and why the others may not.
AFTER = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})
REFUSED = {
    "Router": "holds an encoder for each kind of text; use the folder of one of them",
    "Asym": "holds an encoder for each kind of text; use the folder of one of them",
    "CNN": "lets the padding of a batch change a text's embedding",
    "LSTM": "reads lengths that a Transformer does not give",
    "WordWeights": "weighs words of a word embedding, not of a transformer",
    "WeightedLayerPooling": "reads all layers, which a Transformer does not hand on",
    "Transformer": "is a second one; only one can come first",
}
SKIPPED = {
    "README.md",
    ".git",
    ".gitattributes",
    ".cache",
    "onnx",
    "openvino",
    "bags",
    "checkpoints",
    "artifact.json",
}


@dataclass(frozen=True)
class ModuleEntry:
    """One module after the trunk: its class name and its folder."""

    kind: str
    path: str


@dataclass(frozen=True)
class Layout:
    """What a checkpoint's files say about how text becomes an embedding."""

    folder: Path
    trunk: str = ""
    modules: tuple[ModuleEntry, ...] = ()
    bare: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    pooling: tuple[str, ...] = ()
    include_prompt: bool = True

    @property
    def trunk_folder(self) -> Path:
        """Where the transformer lies."""
        return self.folder / self.trunk


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a mapping.

    Raises:
        CheckpointError: when it is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return value


def read_layout(folder: Path) -> Layout:
    """Read the layout of a checkpoint, without its weights.

    Raises:
        CheckpointError: for a folder without a config, or modules that need remote code.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{folder}: holds neither modules.json nor config.json, so no model"
            )
        return Layout(folder, bare=True)
    entries = _modules(modules)
    trunk, *tail = entries
    if trunk.kind != "Transformer":
        raise CheckpointError(
            f"{modules}: starts with a {trunk.kind} module; text_encoder needs a Transformer"
        )
    _refuse_modules(modules, tail)
    settings = _trunk_settings(folder / trunk.path)
    overall = folder / "config_sentence_transformers.json"
    prompts = read_json(overall).get("prompts") or {} if overall.is_file() else {}
    pooling, include_prompt = _pooling(folder, tail)
    return Layout(
        folder,
        trunk.path,
        tuple(tail),
        max_length=settings.get("max_seq_length"),
        lower_case=bool(settings.get("do_lower_case")),
        prompts={name: text for name, text in prompts.items() if isinstance(text, str)},
        pooling=pooling,
        include_prompt=include_prompt,
    )


def _modules(path: Path) -> list[ModuleEntry]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        entries = [(str(m["type"]), str(m["path"])) for m in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: is no list of modules ({error!r})") from error
    if not entries:
        raise CheckpointError(f"{path}: lists no module")
    for kind, place in entries:
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(f"{path}: module '{kind}' needs remote code, which is not run")
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise CheckpointError(f"{path}: module path '{place}' leaves the folder")
    return [ModuleEntry(kind.rpartition(".")[2], place) for kind, place in entries]


def _refuse_modules(path: Path, tail: Sequence[ModuleEntry]) -> None:
    """Refuse what does not make one embedding of a transformer's states, whatever the batch."""
    pooled = False
    for entry in tail:
        if entry.kind not in AFTER:
            why = REFUSED.get(entry.kind, "is not known to work after a Transformer")
            raise CheckpointError(f"{path}: module '{entry.kind}' {why}")
        if not pooled and entry.kind != "Pooling":
            raise CheckpointError(
                f"{path}: module '{entry.kind}' comes before Pooling, where it works on tokens; "
                "that is a multi-vector model, which text_encoder does not train"
            )
        pooled = True


def _trunk_settings(folder: Path) -> dict[str, Any]:
    for name in TRUNK_CONFIGS:
        if (folder / name).is_file():
            return read_json(folder / name)
    return {}


def _pooling(folder: Path, tail: list[ModuleEntry]) -> tuple[tuple[str, ...], bool]:
    for entry in tail:
        path = folder / entry.path / "config.json"
        if entry.kind == "Pooling" and path.is_file():
            config = read_json(path)
            return pooling_modes(config), bool(config.get("include_prompt", True))
    return (), True


def pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Our words for what a pooling config asks for, old or new."""
    mode = config.get("pooling_mode")
    theirs = {name: word for word, (name, _) in POOLING.items()}
    if mode is not None:
        return tuple(theirs.get(m, m) for m in ([mode] if isinstance(mode, str) else mode))
    return tuple(word for word, (_, flag) in POOLING.items() if config.get(flag)) or ("mean",)


def carry_files(source: Layout, target: Path) -> None:
    """Copy everything of the source but weights and its model card."""
    for path in sorted(source.folder.rglob("*")):
        relative = path.relative_to(source.folder)
        if not path.is_file() or path.name.endswith(WEIGHTS) or SKIPPED & set(relative.parts):
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)


def write_layout(layout: Layout, target: Path, dimension: int) -> None:
    """Write modules.json and the modules' configs with the type names that old and new releases load."""
    listed = [ModuleEntry("Transformer", layout.trunk), *layout.modules]
    modules = [
        {"idx": i, "name": str(i), "path": m.path, "type": CLASSIC + m.kind}
        for i, m in enumerate(listed)
    ]
    write_json(target / "modules.json", modules)
    for entry in layout.modules:
        (target / entry.path).mkdir(exist_ok=True)
        if entry.kind == "Pooling":
            _write_pooling(layout, target / entry.path / "config.json", dimension)
    trunk = target / layout.trunk
    name = next((n for n in TRUNK_CONFIGS if (trunk / n).is_file()), TRUNK_CONFIGS[0])
    write_json(
        trunk / name, {"max_seq_length": layout.max_length, "do_lower_case": layout.lower_case}
    )
    overall = target / "config_sentence_transformers.json"
    settings: dict[str, Any] = {"similarity_fn_name": "cosine"}
    if overall.is_file():
        settings = read_json(overall)
    settings.pop("model_type", None)  # a word of newer releases
    settings["prompts"] = dict(layout.prompts)
    settings.setdefault("default_prompt_name", None)
    write_json(overall, settings)


def _write_pooling(layout: Layout, path: Path, dimension: int) -> None:
    config: dict[str, Any] = {"word_embedding_dimension": dimension}
    config |= {flag: word in layout.pooling for word, (_, flag) in POOLING.items()}
    write_json(path, config | {"include_prompt": layout.include_prompt})


def write_json(path: Path, value: Any) -> None:
    """Write JSON as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
