"""Models on a hub (`owner/name@revision`), and the names of the files that make a model."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from emberge import CheckpointError
from emberge.errors import AccessError
from emberge.hookspecs import WantedFiles
from emberge.model_folder import MODEL_SIGNS

METADATA = (
    *("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.vocab", "*.bpe", "*.spm"),
    *("*.codes", "*.py", "*.metadata", "README.md", "LICENSE*", "NOTICE*"),
)
"""Names of a model's files other than weights."""
OTHER_FORMATS = ("onnx/*", "openvino/*", "coreml/*", "original/*", "gguf/*")
PICKLE = ".bin"
# Seconds to wait for a hub's answer, by the files that are wanted.
_PATIENCE_SECONDS: Mapping[WantedFiles, float] = {"metadata": 3.0, "all": 20.0, "ranges": 20.0}

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def select_metadata(names: Iterable[str]) -> list[str]:
    """Return the names of configs, tokenizers, code and licences."""
    paths = _skip_other_formats(names)
    return [str(path) for path in paths if any(map(path.match, METADATA))]


def select_weights(names: Iterable[str]) -> list[str]:
    """Return the names of each folder's safetensors, or of its pickles if it has none."""
    paths = _skip_other_formats(names)
    safe = [p for p in paths if p.suffix == ".safetensors"]
    folders = {p.parent for p in safe}
    pickles = [p for p in paths if p.suffix == PICKLE and p.parent not in folders]
    return [str(p) for p in (*safe, *pickles)]


def _skip_other_formats(names: Iterable[str]) -> Sequence[PurePosixPath]:
    return [path for path in map(PurePosixPath, names) if not any(map(path.match, OTHER_FORMATS))]


def fetch_from_hub(reference: str, revision: str | None, files: WantedFiles) -> Path:
    """Return a folder with the files of a model on the hub, downloaded once into the hub's own cache.

    If the model has weights in several formats, safetensors are taken; pickles are taken only if there is no
    other format.

    Raises:
        CheckpointError: if the hub has no such model or revision, or does not allow the download.
        ConnectionError: if there is no network and no copy in the cache.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        with _asking_hub(reference):
            info = HfApi().model_info(
                reference, revision=revision, timeout=_PATIENCE_SECONDS[files]
            )
            names = [file.rfilename for file in info.siblings or ()]
            patterns = _build_patterns(names, files)
            return Path(snapshot_download(reference, revision=revision, allow_patterns=patterns))
    except ConnectionError:
        cached = _find_in_cache(reference, revision, files)
        if cached is None:
            raise
        return cached


def find_commit(reference: str, revision: str | None) -> str:
    """Return the commit that a model's revision on the hub currently names.

    Raises:
        CheckpointError: if the hub has no such model or revision, or does not allow the download.
        ConnectionError: if the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    patience = _PATIENCE_SECONDS["ranges"]
    with _asking_hub(reference):
        return str(HfApi().model_info(reference, revision=revision, timeout=patience).sha)


def _build_patterns(names: Sequence[str], files: WantedFiles) -> list[str]:
    """Return a pattern for each of the names that is a wanted file, which no other name matches."""
    wanted = select_metadata(names)
    wanted += [] if files == "metadata" else select_weights(names)
    return [re.sub(r"([*?\[])", r"[\1]", name) for name in wanted]


def _find_in_cache(reference: str, revision: str | None, files: WantedFiles) -> Path | None:
    """Return the copy in the hub's cache; None if it is incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                reference,
                revision=revision,
                local_files_only=True,
                allow_patterns=list(METADATA),  # the files of weights are not known
                ignore_patterns=list(OTHER_FORMATS),
            )
        )
    except LocalEntryNotFoundError:
        return None
    has_config = any((folder / sign).is_file() for sign in MODEL_SIGNS)
    suffixes = {path.suffix for path in folder.rglob("*")}
    has_weights = not suffixes.isdisjoint((".safetensors", PICKLE)) and all(
        (index.parent / shard).is_file()
        for index in folder.rglob("*.safetensors.index.json")
        for shard in json.loads(index.read_bytes()).get("weight_map", {}).values()
    )
    return folder if has_config and (files == "metadata" or has_weights) else None


@contextmanager
def _asking_hub(reference: str) -> Iterator[None]:
    """Turn the errors of the hub's client in the `with` block into ours.

    Raises:
        CheckpointError: if the hub refuses the model.
        ConnectionError: if it cannot be asked.
        OSError: if the cache's disk is full or cannot be written.
    """
    from huggingface_hub import errors

    try:
        yield
    except (
        errors.HFValidationError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    ) as error:
        is_hidden = isinstance(error, errors.RepositoryNotFoundError)
        reason = " ".join(str(error).split())
        raise (AccessError if is_hidden else CheckpointError)(
            f"'{reference}': {reason}; if you meant the folder ./{reference} write it so"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise
        reason = type(error).__name__
        if isinstance(error, errors.OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set"
        elif isinstance(error, errors.HfHubHTTPError) and error.response is not None:
            reason = f"it answered {error.response.status_code}"
        raise ConnectionError(f"the hub cannot be reached ({reason})") from error
