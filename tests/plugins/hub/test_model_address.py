"""Models on servers of this machine are read by ranges, and merge to the same bytes as local ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from emberge import CheckpointError, Plugins, check_recipe, parse_recipe, run_recipe
from emberge.model_folder import Checkpoint
from emberge.tensor_files import tensor_fetcher
from emberge_hub import model_address
from safetensors.torch import load_file

from tests.support import tiny
from tests.support.loopback_hub import hub_at
from tests.support.range_server import COMMIT, RangeServer, serving_ranges
from tests.support.result_folders import artifact_of

WEIGHTS = "model.safetensors"
BLOCK = 4096
MERGE = """
steps:
  merged:
    merge:
      models: [{0}/a, {0}/b, {0}/c]
      base: {0}/base
      strategy: {1}
"""


@pytest.fixture(autouse=True)
def _fast_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and blocks so small that a tiny model has many."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tensor_fetcher, "_BLOCK_BYTES", BLOCK)


@pytest.fixture
def root(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    """What the server has, under `owner/`."""
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        shutil.copytree(folder, tmp_path / "root" / "owner" / name)
    return tmp_path / "root"


@pytest.fixture
def server(root: Path, tmp_path: Path) -> Iterator[RangeServer]:
    """The server as a hub."""
    with serving_ranges(root) as found, hub_at(found.url, tmp_path / "home"):
        yield found


def merged(text: str, out: Path, plugins: Plugins) -> Path:
    recipe = parse_recipe(text, plugins, path=out / "recipe.yaml")
    check_recipe(recipe, plugins).raise_errors()
    return Path(run_recipe(recipe, out, plugins, quiet=True)["merged"])


def same_tensors(one: Path, other: Path) -> bool:
    first, second = load_file(one / WEIGHTS), load_file(other / WEIGHTS)
    return first.keys() == second.keys() and all(
        torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first
    )


@pytest.fixture(scope="module")
def disk(
    bert: Path, berts: list[Path], plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The merge of the same models in folders."""
    place = tmp_path_factory.mktemp("disk")
    for name, folder in zip(("base", "a", "b", "c"), (bert, *berts), strict=True):
        (place / name).symlink_to(folder)
    return merged(MERGE.format(place, "task_arithmetic"), place / "out", plugins)


def test_a_merge_of_several_passes_fetches_each_byte_once(
    server: RangeServer, root: Path, tmp_path: Path, plugins: Plugins
) -> None:
    result = merged(MERGE.format("hf://owner", "ties"), tmp_path / "out", plugins)
    for name in ("base", "a", "b", "c"):
        size = (root / "owner" / name / WEIGHTS).stat().st_size
        header = Checkpoint(root / "owner" / name).specs
        first = min(spec.offset for spec in header.values())
        # `check` and the run read the header once: the notes are kept. The block at its end is read whole.
        assert server.sent[f"owner/{name}/{WEIGHTS}"] == size + first % BLOCK, name
    artifact = artifact_of(result)
    accounts = {one["url"]: one for one in artifact.details.fetched}
    own = accounts[f"hf://owner/a@{COMMIT}/{WEIGHTS}"]
    assert own["fetched"] == own["size"] == (root / "owner" / "a" / WEIGHTS).stat().st_size
    assert own["checked"] == "sha256"


def test_check_reads_only_headers(
    server: RangeServer, root: Path, tmp_path: Path, plugins: Plugins
) -> None:
    recipe = parse_recipe(
        MERGE.format("hf://owner", "task_arithmetic"), plugins, path=tmp_path / "r.yaml"
    )
    report = check_recipe(recipe, plugins)
    assert not report.errors
    assert any("merge plan" in note.title for note in report.notes)  # as for a folder here
    specs = Checkpoint(root / "owner" / "a").specs.values()
    sent = server.sent[f"owner/a/{WEIGHTS}"]
    assert sent == min(spec.offset for spec in specs)
    check_recipe(recipe, plugins).raise_errors()
    assert server.sent[f"owner/a/{WEIGHTS}"] == sent, "the notes of a content are kept"


def test_merging_text_trunks_fetches_no_tower(tmp_path: Path, plugins: Plugins) -> None:
    owner = tmp_path / "root" / "owner"
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    tiny.transformer(owner / "text", "AutoModelForCausalLM", "qwen3", rope_parameters=rope)
    tiny.transformer(owner / "vision", "AutoModelForImageTextToText", "qwen3-vl", seed=2)
    text = """
steps:
  merged:
    merge:
      models:
      - {{model: {0}/text, weight: 0.5}}
      - {{model: {0}/vision, part: text, weight: 0.5}}
"""
    from_disk = merged(text.format(owner), tmp_path / "disk", plugins)
    with serving_ranges(tmp_path / "root") as server, hub_at(server.url, tmp_path / "home"):
        ranged = merged(text.format("hf://owner"), tmp_path / "ranged", plugins)
        ranges = server.ranges[f"owner/vision/{WEIGHTS}"]
    assert same_tensors(from_disk, ranged)
    specs = Checkpoint(owner / "vision").specs
    towers = [spec for name, spec in specs.items() if "visual" in name]
    assert sum(spec.nbytes for spec in towers) > 4 * BLOCK
    asked = {byte // BLOCK for start, stop in ranges for byte in range(start, stop)}
    header = range(min(spec.offset for spec in specs.values()))
    trunk = [
        range(s.offset, s.offset + s.nbytes) for n, s in specs.items() if "language_model" in n
    ]
    assert asked == {byte // BLOCK for stretch in (header, *trunk) for byte in stretch}


def test_an_unknown_scheme_is_refused(tmp_path: Path, plugins: Plugins) -> None:
    for address in ("xyz://a/b", "https://a/b"):
        text = f"steps:\n  merged:\n    merge: {{models: [{address}, {address}]}}\n"
        recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
        (error, *_) = check_recipe(recipe, plugins).errors
        assert "there is no model" in error.message
        assert address in error.message


def test_a_hub_is_read_by_ranges_and_checked_against_its_hashes(
    disk: Path, server: RangeServer, root: Path, tmp_path: Path, plugins: Plugins
) -> None:
    text = MERGE.format("hf://owner", "task_arithmetic")
    ranged = merged(text, tmp_path / "ranged", plugins)
    assert same_tensors(disk, ranged)
    artifact = artifact_of(ranged)
    assert [one["checked"] for one in artifact.details.fetched] == ["sha256"] * 4
    damaged = root / "owner" / "c" / WEIGHTS
    server.after[f"owner/c/{WEIGHTS}"] = lambda: flip_last_byte(damaged)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CheckpointError, match="hf://owner/c"):
        merged(text, tmp_path / "broken", plugins)


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_bucket_is_read_by_ranges(
    disk: Path,
    server: RangeServer,
    tmp_path: Path,
    plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(
        "s3fs", reason="fsspec reads buckets with it: pip install 'emberge[remote]'"
    )
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"endpoint_url": server.url, "anon": True})
    ranged = merged(
        MERGE.format("s3://bucket/owner", "task_arithmetic"), tmp_path / "ranged", plugins
    )
    assert same_tensors(disk, ranged)


def test_without_a_cache_folder_the_error_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(CheckpointError, match="set XDG_CACHE_HOME to an absolute path"):
        model_address._create_cache()
