"""Lines and warnings about the template, the folder that gives a result all but its weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_files import TOKENIZER_FILES, files_not_copied
from emberge.wording import join_some

__all__ = ["origin_line", "remarks"]

_LIBRARIES = ("sentence_transformers.", "pylate.")
_TOKENIZERS = tuple(name for name in TOKENIZER_FILES if not name.startswith("chat_template"))
_OTHER_TOKENIZERS = (
    "*.tiktoken",
    "*.spm",
    "*.bpe",
    "*.model",
    "bpe.codes",
    "*tokenizer_config.json",
)
_SHOWN = 3


def origin_line(template: Checkpoint) -> str:
    """Return one line about the template: its name, and the files that are not copied, with reasons."""
    name = template.folder.name
    left = [
        f"{join_some(names, _SHOWN)} ({reason})"
        for reason, names in files_not_copied(template).items()
    ]
    behind = f"; left out: {', '.join(left)}" if left else ""
    return f"configs, tokenizer and modules come from '{name}'{behind}"


def remarks(template: Checkpoint) -> Iterator[str]:
    """Yield warnings of what a user of the result will miss or need."""
    reads_text = bool(template.modules) or "model_type" in template.config
    if reads_text and not _has_tokenizer(template):
        yield (
            f"'{template.folder.name}' has no tokenizer, and so the result will have none; "
            "name a model that has one with 'tokenizer'"
        )
    modules = sorted({module for module, _ in _code_of(template)})
    if modules:
        yield (
            f"'{template.folder.name}' runs code of its own ({', '.join(modules)}): load the result with "
            "trust_remote_code=True, as its parents"
        )
    for module, path in _code_of(template):
        if path is not None and not path.is_file():
            yield (
                f"'{template.folder.name}' names the code {module}, and {path.name} is missing; the result "
                "will not load before it is added"
            )


def _has_tokenizer(template: Checkpoint) -> bool:
    folders = dict.fromkeys([template.trunk, template.folder])
    if template.chain and template.chain[0].kind == "BoW":
        return True
    return any(
        any((folder / name).is_file() for name in _TOKENIZERS)
        or any(True for pattern in _OTHER_TOKENIZERS for _ in folder.glob(pattern))
        for folder in folders
    )


def _code_of(template: Checkpoint) -> Iterator[tuple[str, Path | None]]:
    """Yield code that a config or a module names, with its file; None for a file in another model."""
    seen: set[str] = set()
    mapped = template.config.get("auto_map")
    listed = [v for v in mapped.values() if v] if isinstance(mapped, dict) else []
    named = [n for v in listed for n in (v if isinstance(v, list) else [v]) if isinstance(n, str)]
    named += [m.type for m in template.chain if not m.type.startswith(_LIBRARIES) and "." in m.type]
    for name in named:
        elsewhere, _, inside = name.rpartition("--")
        module = inside.rpartition(".")[0]
        place = f"{elsewhere}--{module}" if elsewhere else f"{module}.py"
        if place not in seen and re.fullmatch(r"[\w]+", module):
            seen.add(place)
            yield place, None if elsewhere else template.trunk / f"{module}.py"
