"""Data that are read as they are needed: the first rows of a file, and of a hub dataset by its shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataError, DataRef
from emberge.data import load_datasets
from emberge_data import JsonLines

from tests.support.loopback_hub import COMMITS, serving

READERS = (JsonLines(),)
SHARDS = [f"train-{number:05d}-of-00003.parquet" for number in range(3)]
ROWS = 1000  # of a shard

_LOAD = """
import json, sys
from pathlib import Path
from emberge import DataEntry
from emberge.data import load_datasets
store, entries = Path(sys.argv[1]), json.loads(sys.argv[2])
found = load_datasets([DataEntry(**e) for e in entries], readers=(), resolve=None, store=store)
print(json.dumps([[len(d), d[len(d) - 1].anchor, d.fingerprint] for d in found]))
"""


def _write(path: Path, count: int, *, bad: str = "") -> Path:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(count)]
    path.write_text("\n".join([*lines, bad]) + "\n")
    return path


def _load(path: Path, store: Path | None = None, **options: Any) -> Any:
    entry = DataEntry(path=DataRef(str(path)), **options)
    return load_datasets([entry], readers=READERS, resolve=lambda _: path, store=store)[0]


def test_the_first_rows_of_a_file_alone_are_read_and_a_limit_is_of_them(tmp_path: Path) -> None:
    path = _write(tmp_path / "texts.jsonl", 50, bad="{")
    found = _load(path, first=50)
    assert [found[row].anchor for row in (0, 49)] == ["text 0", "text 49"]
    with pytest.raises(DataError, match=r"texts\.jsonl:51"):
        _load(path, first=51)
    assert len(_load(_write(tmp_path / "texts.jsonl", 5), first=50)) == 5
    path = _write(tmp_path / "texts.jsonl", 50)
    few, first = _load(path, first=20, limit=5), _load(path, first=20)
    anchors = {first[row].anchor for row in range(20)}
    assert {few[row].anchor for row in range(5)} < anchors


def test_each_number_of_first_rows_is_kept_apart(tmp_path: Path) -> None:
    path, store = _write(tmp_path / "texts.jsonl", 50), tmp_path / "store"
    for first in (10, 20, None, 10):
        assert len(_load(path, store, first=first)) == (first or 50)


def test_a_catalogue_gives_a_number_for_each_of_its_sets(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _write(tmp_path / f"{name}.jsonl", 30)
    sets = "- {name: one, path: one.jsonl, first: 7}\n- {name: two, path: two.jsonl}\n"
    (tmp_path / "datasets.yaml").write_text("train:\n" + sets)
    entry = DataEntry(path=DataRef("datasets.yaml"))
    found = load_datasets([entry], readers=READERS, resolve=lambda _: tmp_path / "datasets.yaml")
    assert [len(one) for one in found] == [7, 30]


@pytest.mark.slow
def test_shards_of_a_hub_dataset_that_are_not_needed_are_not_downloaded(tmp_path: Path) -> None:
    """1200 rows are one shard and a part of the next; a second load finds them and asks for no shard."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "hub/datasets/owner/texts/main"
    folder.mkdir(parents=True)
    for number, name in enumerate(SHARDS):
        texts = pa.table({"text": [f"text {number * ROWS + row} " * 9 for row in range(ROWS)]})
        parquet.write_table(texts, folder / name, row_group_size=100)
    whole = sum(path.stat().st_size for path in folder.iterdir())
    with serving(tmp_path / "hub") as hub:

        def load(**options: Any) -> list[Any]:
            entry = {"hub": "owner/texts", "revision": COMMITS["main"], **options}
            hub.fetched.clear()
            hub.sent.clear()
            return list(_asked(tmp_path, hub.url, [entry])[0])

        rows, last, fingerprint = load(first=ROWS + 200)
        assert (rows, last.split()[:2]) == (ROWS + 200, ["text", str(ROWS + 199)])
        assert set(hub.fetched) == set(SHARDS[:2])
        assert load(first=ROWS + 200) == [rows, last, fingerprint]
        assert hub.fetched == []
        assert load(first=10)[0] == 10
        assert set(hub.fetched) == {SHARDS[0]}
        assert sum(hub.sent.values()) < whole


def _asked(root: Path, url: str, entries: list[dict[str, Any]]) -> list[list[Any]]:
    """Load in a process of its own, as the hub's clients read their settings once."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(root / "home"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(root / "store"), json.dumps(entries)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found
