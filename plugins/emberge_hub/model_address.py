"""Models at an address: `hf://owner/name@revision`, `s3://bucket/model`, `gs://bucket/model`.

A mirror folder has the model's configs and tokenizer. Unless the whole model is wanted, it has notes with the
headers of the weights in place of the weights. The folder is named after the versions of all files, so it is
never out of date.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from emberge import CheckpointError
from emberge.files import fill_once, find_user_cache
from emberge.hookspecs import WantedFiles
from emberge.model_folder import MODEL_SIGNS
from emberge.tensor_files import SCHEMES, ServerFile

from emberge_hub.hub import (
    PICKLE,
    fetch_from_hub,
    find_commit,
    select_metadata,
    select_weights,
)

_HUB = "hf://"
_REQUESTS_AT_ONCE = 8


def fetch_from_address(reference: str, revision: str | None, files: WantedFiles) -> Path | None:
    """Return a folder with the files of the model at an address; None for an unknown kind of address.

    Unless `files` is `all`, notes with the weights' headers take the place of the weights.

    Raises:
        CheckpointError: if there is no model at the address, or the server refuses access or cannot send
            parts of files.
        ConnectionError: if the server cannot be reached.
    """
    if not reference.startswith(SCHEMES):
        return None
    if reference.startswith(_HUB):
        name = reference.removeprefix(_HUB).rstrip("/")
        if files == "all":
            return fetch_from_hub(name, revision, files)
        root = f"{_HUB}{name}@{find_commit(name, revision)}"
    else:
        root = (reference if revision is None else f"{reference}@{revision}").rstrip("/")
        _require_plain(root)
    server_files = ServerFile.list_files(root)
    names = {*select_metadata(server_files), *select_weights(server_files)}
    _require_model(root, names, files)
    for name in names:
        _require_inside(root, name)
    model_files = {name: server_files[name] for name in sorted(names)}
    facts = [(name, file.size, file.version) for name, file in model_files.items()]
    key = hashlib.sha256(json.dumps([root, facts]).encode()).hexdigest()[:32]
    is_whole = files == "all"
    folder = _create_cache() / ("whole" if is_whole else "notes") / key
    return fill_once(folder, lambda side: _fill_folder(side, model_files, is_whole))


def _create_cache() -> Path:
    """Create and return the user's cache of files from servers."""
    cache = find_user_cache()
    if cache is None:
        raise CheckpointError(
            "no folder for files from servers: set XDG_CACHE_HOME to an absolute path"
        )
    folder = cache / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require_inside(root: str, name: str) -> None:
    """Refuse a name from a server's file unless it names a file below the address."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[?#\\\x00-\x1f]", name):
        raise CheckpointError(
            f"{root}: names the file {name[:100]!r}, which leads out of the model's folder"
        )


def _require_plain(root: str) -> None:
    """Refuse an address with a secret in it, as the address appears in recipes, results and cards."""
    parts = urlsplit(root)
    if parts.query or parts.username or parts.password:
        raise CheckpointError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: an address has no name, password or query; give "
            "credentials as the bucket's client takes them, such as its environment variables"
        )


def _require_model(root: str, names: Collection[str], files: WantedFiles) -> None:
    if not any(PurePosixPath(name).name in MODEL_SIGNS for name in names):
        raise CheckpointError(
            f"{root}: there is no model here: neither modules.json nor config.json"
        )
    pickle = next((name for name in names if name.endswith(PICKLE)), None)
    if pickle is not None and files != "all":
        raise CheckpointError(
            f"{root}/{pickle}: is a pickle, whose tensors cannot be read one by one; download the model's "
            "folder, convert it by `emberge safetensors` and name that"
        )


def _fill_folder(folder: Path, files: Mapping[str, ServerFile], is_whole: bool) -> None:
    """Write the files of a model into a folder; unless it `is_whole`, notes take the place of weights."""

    def write(name: str) -> None:
        path, file = folder / PurePosixPath(name), files[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_whole and path.match("*.safetensors") and not path.match("adapter_*"):
            file.build_note().write(path)
        else:
            file.copy(path)

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "request") as threads:
        try:
            list(threads.map(write, files))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
