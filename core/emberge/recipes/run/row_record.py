"""Record of the rows that a step was given: the hashes of their keys, beside its result.

The keys are salted with a value that the step's fingerprint decides, so that equal results have equal bytes.
The record is for whoever has to show later which rows a result has seen; it stays in OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from emberge.component_parts import parts_of
from emberge.contracts import Reference
from emberge.data import DataEntry, KeyList, StoredDataset
from emberge.files import write_json
from emberge.recipes.references import Targets

ROW_KEYS = "row_keys.json"
"""Name of the file with the hashed keys of the rows that a step was given."""


def write_row_record(folder: Path, step: Any, targets: Targets, fingerprint: str) -> dict[str, Any]:
    """Write the keys of a step's rows, if its data have keys, bags or forgotten keys.

    Returns:
        The facts of the rows for artifact.json: name, number and content hash of each dataset; without such
        data, an empty mapping.

    Raises:
        DataError: if data cannot be read any more.
    """
    datasets = [
        dataset
        for _, entry in parts_of(step, DataEntry, Reference)
        if isinstance(entry, DataEntry)
        for dataset in targets.keyed_datasets(entry)
    ]
    if not datasets:
        return {}
    digests = frozenset[bytes]().union(*(dataset.key_hashes() for dataset in datasets))
    salt = sha256(f"rows of {fingerprint}".encode()).digest()[:16]
    write_json(folder / ROW_KEYS, KeyList.of(digests, salt).plain, durable=False)
    return {"rows": [_describe_rows(dataset) for dataset in datasets]}


def _describe_rows(dataset: StoredDataset) -> dict[str, Any]:
    return {"dataset": dataset.info.name, "rows": len(dataset), "content": dataset.fingerprint}


def read_row_record(folder: Path, record: Mapping[str, Any]) -> KeyList | None:
    """Return the keys of the rows that a result's step was given; None if the result has no record of them.

    Raises:
        DataError: if the result should have such a record, and it is missing or damaged.
    """
    if not record.get("rows"):
        return None
    return KeyList.read(folder / ROW_KEYS)
