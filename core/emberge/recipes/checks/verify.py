"""The check of a result against its provenance: every file that its step left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError, EmbergeError
from emberge.files import read_json
from emberge.results import ARTIFACT, find_differences
from emberge.wording import count_noun

_ADVICE = "get it again from where the folder came from, or run the recipe again"


def verify_result(folder: Path) -> list[str]:
    """Compare every file of a result with its artifact.json, and return lines that say what it is.

    The folder may have been copied anywhere.

    Raises:
        CheckpointError: if the folder is missing or no result.
        EmbergeError: if there are differences; has a line for each, and the remedy.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    if not (folder / ARTIFACT).is_file():
        results = sorted(p.parent for p in folder.glob(f"*/{ARTIFACT}") if p.parent.is_symlink())
        hint = f"; name one of the results in it: {results[0]}" if results else ""
        raise CheckpointError(f"{folder}: has no {ARTIFACT}, so it is no result of emberge{hint}")
    differences = [f"{difference}; {_ADVICE}" for difference in find_differences(folder)]
    if differences:
        raise EmbergeError("\n".join(differences))
    return list(_describe_result(folder, read_json(folder / ARTIFACT)))


def _describe_result(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{folder}: {record['kind']} of step '{record['step']}' ({record['component']})"
    yield f"{count_noun(len(record['files']), 'file')} as published"
    chain = record["details"].get("strategy")
    if isinstance(chain, list):
        names = [next(iter(link)) if isinstance(link, Mapping) else link for link in chain]
        version = record["versions"].get("emberge")
        yield f"{' → '.join(names)}, seed {record['seed']}, emberge {version}"
