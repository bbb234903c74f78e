"""The rows that a training used, in files next to its model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge.contracts import Rows
from emberge.errors import DataError

FOLDER = "bags"


def write_bags(folder: Path, bags: Mapping[str, Rows]) -> dict[str, str]:
    """Write the row numbers of each dataset, int64, to `bags/<dataset>.npy`; return each dataset's file.

    Characters that some file systems refuse become `_`, and names that would then be equal are numbered.
    """
    import numpy as np

    file_by_dataset: dict[str, str] = {}
    used_names: set[str] = set()
    for name, rows in bags.items():
        safe_name = re.sub(r"[^\w.-]", "_", name)
        stem, count = safe_name, 1
        while stem.casefold() in used_names:
            count += 1
            stem = f"{safe_name}-{count}"
        used_names.add(stem.casefold())
        path = folder / FOLDER / f"{stem}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.asarray(rows, dtype=np.int64))
        file_by_dataset[name] = path.relative_to(folder).as_posix()
    return file_by_dataset


def _read_bag(folder: Path, name: str, used: Mapping[str, Any]) -> Rows:
    """Return the rows of one data set that the training in `folder` used, by the facts in its artifact.

    Raises:
        DataError: if the bag is missing or damaged.
    """
    import numpy as np

    rows, total, bag = int(used["rows"]), int(used["of"]), used.get("bag")
    if bag is None and rows in (0, total):
        return range(rows)
    if not isinstance(bag, str):
        raise DataError(f"{folder}: keeps no row numbers of '{name}', of which it saw {rows}")
    try:
        bag_rows: Rows = np.load(folder / bag, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / bag}: cannot be read: {error}") from error
    if len(bag_rows) != rows:
        raise DataError(
            f"{folder / bag}: holds {len(bag_rows)} rows of '{name}', and the training saw {rows}"
        )
    return bag_rows


def count_rows(name: str, uses: Sequence[tuple[Path, Mapping[str, Any]]]) -> int | None:
    """Count the rows of a data set that at least one of several trainings used; None if they are unknown.

    `uses` are each training's folder, and the facts on the set in its artifact. Disjoint bags of one division
    share no row; those of two divisions may, so that their rows are unknown.
    """
    uses_by_part: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {}
    for folder, used in uses:
        uses_by_part.setdefault(str(used.get("part", "")), []).append((folder, used))
    if len({part.rpartition(" of ")[2] for part in uses_by_part}) > 1:
        return None
    counts = [_count_joined_rows(name, same_part) for same_part in uses_by_part.values()]
    return None if None in counts else sum(count for count in counts if count is not None)


def _count_joined_rows(name: str, uses: Sequence[tuple[Path, Mapping[str, Any]]]) -> int | None:
    """Count the rows that at least one of several trainings on the same rows used."""
    import numpy as np

    whole, count = uses[0][1].get("of"), uses[0][1].get("rows")
    if any(used.get("rows") == whole and "bag" not in used for _, used in uses):
        return whole if isinstance(whole, int) else None
    try:
        seen = np.zeros(int(whole or 0), dtype=np.bool_)
        for folder, used in uses:
            seen[np.asarray(_read_bag(folder, name, used), dtype=np.int64)] = True
    except (DataError, IndexError, MemoryError, TypeError, ValueError, KeyError):
        return count if len(uses) == 1 and isinstance(count, int) else None
    return int(seen.sum())
