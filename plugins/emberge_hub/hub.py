"""Models on a hub (`owner/name@revision`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from emberge import CheckpointError
from emberge.errors import AccessError
from emberge.files import disk_space_problems

Files = Literal["all", "metadata", "ranges"]
METADATA = (
    "*.json",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.tiktoken",
    "*.vocab",
    "*.bpe",
    "*.spm",
    "*.codes",
    "*.py",
    "*.metadata",
    "README.md",
    "LICENSE*",
    "NOTICE*",
)
OTHER_FORMATS = ("onnx/*", "openvino/*", "coreml/*", "original/*", "gguf/*")
PICKLE = ".bin"
SIGNS = ("modules.json", "config.json", "adapter_config.json")
"""Files of which each model has one."""


def select_metadata(names: Iterable[str]) -> list[str]:
    """Return the names of configs, tokenizers, code and licences."""
    return [
        str(p) for p in _skip_other_formats(names) if any(p.match(pattern) for pattern in METADATA)
    ]


def select_weights(names: Iterable[str]) -> list[str]:
    """Return the names of each folder's safetensors, or of its pickles if it has none."""
    paths = _skip_other_formats(names)
    safe = [p for p in paths if p.suffix == ".safetensors"]
    folders = {p.parent for p in safe}
    pickles = [p for p in paths if p.suffix == PICKLE and p.parent not in folders]
    return [str(p) for p in (*safe, *pickles)]


def _skip_other_formats(names: Iterable[str]) -> Sequence[PurePosixPath]:
    paths = [PurePosixPath(name) for name in names]
    return [p for p in paths if not any(p.match(pattern) for pattern in OTHER_FORMATS)]


_PATIENCE = {"metadata": 3.0, "all": 20.0, "ranges": 20.0}  # seconds to wait for a hub's answer


def fetch_from_hub(reference: str, revision: str | None, files: Files) -> Path:
    """Return a folder with the files of a model on the hub, downloaded once into the hub's own cache.

    If the model has weights in several formats, safetensors are taken; pickles are taken only if there is no
    other format.

    Raises:
        CheckpointError: if the hub has no such model or revision, or does not allow the download.
        ConnectionError: if there is no network and no copy in the cache.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        info = HfApi().model_info(
            reference, revision=revision, files_metadata=True, timeout=_PATIENCE[files]
        )
        siblings = info.siblings or ()
        names = _select_files([file.rfilename for file in siblings], files)
        sizes = {file.rfilename: file.size for file in siblings}
        needed = sum(sizes[name] or 0 for name in names)
        for problem in disk_space_problems(needed, Path(HF_HUB_CACHE), None):
            raise CheckpointError(f"'{reference}': {problem.message}")
        patterns = _escape_patterns(names)
        return Path(snapshot_download(reference, revision=revision, allow_patterns=patterns))
    except CheckpointError:
        raise
    except Exception as error:
        fault = _find_refusal(reference, error)
        if fault is not None:
            raise fault from error
        cached = _find_in_cache(reference, revision, files)
        if cached is not None:
            return cached
        raise ConnectionError(
            f"the hub cannot be reached ({_describe_reason(error)}) and its cache has no copy"
        ) from error


def commit_of(reference: str, revision: str | None) -> str:
    """Return the commit that a model's revision on the hub currently names.

    Raises:
        CheckpointError: if the hub has no such model or revision, or does not allow the download.
        ConnectionError: if the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(reference, revision=revision, timeout=_PATIENCE["ranges"])
    except Exception as error:
        fault = _find_refusal(reference, error)
        if fault is not None:
            raise fault from error
        raise ConnectionError(f"the hub cannot be reached ({_describe_reason(error)})") from error
    return str(info.sha)


def _select_files(names: Sequence[str], files: str) -> list[str]:
    metadata = select_metadata(names)
    return metadata if files == "metadata" else [*metadata, *select_weights(names)]


def _escape_patterns(names: Iterable[str]) -> list[str]:
    return [re.sub(r"([*?\[])", r"[\1]", name) for name in names]


def _find_in_cache(reference: str, revision: str | None, files: str) -> Path | None:
    """Return the copy in the hub's cache; None if it is incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # Of an unknown number of files of weights, so the patterns name the others.
        patterns = {"allow_patterns": list(METADATA), "ignore_patterns": list(OTHER_FORMATS)}
        folder = Path(
            snapshot_download(reference, revision=revision, local_files_only=True, **patterns)
        )
    except LocalEntryNotFoundError:
        return None
    has_config = any((folder / sign).is_file() for sign in SIGNS)
    suffixes = {path.suffix for path in folder.rglob("*")}
    has_weights = not suffixes.isdisjoint((".safetensors", PICKLE))
    return folder if has_config and (files == "metadata" or has_weights) else None


def _find_refusal(reference: str, error: Exception) -> CheckpointError | None:
    """Return the hub's reason to refuse a model, as an error; None if the hub cannot be asked."""
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if not isinstance(error, HFValidationError | RepositoryNotFoundError | RevisionNotFoundError):
        return None
    kind = AccessError if isinstance(error, RepositoryNotFoundError) else CheckpointError
    reason = " ".join(str(error).split())
    return kind(f"'{reference}': {reason}; if you meant the folder ./{reference} write it so")


def _describe_reason(error: Exception) -> str:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"it answered {error.response.status_code}"
    return type(error).__name__
