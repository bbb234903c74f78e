"""The check of a result against its provenance: its files, and the headers of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError, EmbergeError
from emberge.files import read_json
from emberge.model_folder import Checkpoint
from emberge.results import ARTIFACT, find_differences
from emberge.tensor_files import read_header, read_provenance
from emberge.wording import count_noun

_ADVICE = "get it again from where the folder came from, or run the recipe again"


def verify_result(folder: Path) -> list[str]:
    """Check a result, or a bare folder of merged weights, and return lines that say what it is.

    It may have been copied anywhere. If there is an artifact.json, every file's presence, size and hash are
    compared with it. The headers of weights are compared with each other.

    Raises:
        CheckpointError: if the folder is missing, or contains nothing by which it can be verified.
        EmbergeError: if there are differences; has a line for each, and the remedy.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    has_record = (folder / ARTIFACT).is_file()
    results = sorted(p.parent for p in folder.glob(f"*/{ARTIFACT}") if p.parent.is_symlink())
    if results and not has_record:
        raise CheckpointError(
            f"{folder}: holds results, and is none; name one of them: {results[0]}"
        )
    _raise_differences(find_differences(folder))
    headers = _read_headers(folder)
    if not has_record and not any(headers.values()):
        raise CheckpointError(
            f"{folder}: has neither an {ARTIFACT} nor weights whose headers say how they were made; it was "
            "not made by emberge, or another tool has saved it again"
        )
    record = read_json(folder / ARTIFACT) if has_record else {}
    _raise_differences(_compare_headers("strategy" in (record.get("details") or {}), headers))
    if headers and any((folder / name).is_file() for name in ("config.json", "modules.json")):
        _ = Checkpoint(folder).specs  # raises an error if the index does not fit the files
    return list(_describe_result(folder, record, headers))


def _raise_differences(differences: Iterator[str]) -> None:
    lines = [f"{difference}; {_ADVICE}" for difference in differences]
    if lines:
        raise EmbergeError("\n".join(lines))


def _read_headers(folder: Path) -> dict[Path, dict[str, Any] | None]:
    """Return the provenance in each weight file's header, by the file's path; None if it has none."""
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*.safetensors"))]
    return {
        path: read_provenance(read_header(folder / path)[1])
        for path in paths
        if not any(part.startswith(".") for part in path.parts)
    }


def _compare_headers(
    is_merge: bool, headers: Mapping[Path, dict[str, Any] | None]
) -> Iterator[str]:
    """Yield a problem for each header that is not of one merge with the others of its folder."""
    # A copied trunk keeps the header that describes how it was made; so does each module of the folder.
    first_by_folder: dict[Path, Path] = {}
    for path, header in headers.items():
        if header is None:
            if is_merge or any(headers.values()):
                yield f"the header of {path} does not say how it was made: another tool has saved it again"
            continue
        first = first_by_folder.setdefault(path.parent, path)
        if header != headers[first]:
            yield f"the header of {path} says something else than that of {first}: they come from two merges"


def _describe_result(
    folder: Path, record: Mapping[str, Any], headers: Mapping[Path, dict[str, Any] | None]
) -> Iterator[str]:
    if record:
        yield f"{folder}: {record['kind']} of step '{record['step']}' ({record['component']})"
        yield f"{count_noun(len(record['files']), 'file')} as published"
    else:
        yield f"{folder}: merged weights without an {ARTIFACT}: hashes of files are not known"
    own = (header for path, header in headers.items() if header and path.parent == Path())
    header = next(own, None)
    if header is not None:
        names = [
            next(iter(link)) if isinstance(link, Mapping) else link
            for link in header.get("strategy", ())
        ]
        count = count_noun(len(header.get("models", ())), "model")
        version = header.get("versions", {}).get("emberge")
        yield f"{' → '.join(names)} of {count}, seed {header.get('seed')}, emberge {version}"
