"""Files of rows for steps over data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge_data import write_json_rows


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    write_json_rows(path, rows)
    return path
