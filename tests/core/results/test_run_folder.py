"""The names and sizes of folders in an OUT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge.results import OutFolder, measure_folder
from safetensors.torch import save_file


@pytest.mark.parametrize("step", ["boom", "members.draw=1,seed=2", "a+b@c-d"])
def test_a_plain_id_is_the_name_of_its_folders(step: str) -> None:
    out_folder = OutFolder(Path("out"))
    assert out_folder.locate_link(step) == Path("out", step)
    assert out_folder.locate_result(step, "0123456789") == Path("out", f"{step}-01234567")
    assert out_folder.locate_work(step, "0123456789") == Path("out/.work", f"{step}-01234567")


def test_ids_that_a_file_system_may_refuse_have_safe_names_of_their_own() -> None:
    ids = ["a/b", "a:b", "../b", ".b", "a" * 300, "a" * 301]
    names = [OutFolder(Path("out")).locate_link(step).relative_to("out") for step in ids]
    assert all(len(name.parts) == 1 and len(str(name)) < 110 for name in names)
    assert not any(str(name).startswith(".") for name in names)
    assert len(set(names)) == len(ids)


def test_who_may_read_a_result_may_read_its_weights(tmp_path: Path) -> None:
    out_folder = OutFolder(tmp_path)
    output = out_folder.locate_work("a", "0123456789") / "output"
    (output / "checkpoints").mkdir(parents=True)
    output.chmod(0o750)
    out_folder.store.mkdir()
    save_file({"w": torch.ones(2)}, output / "checkpoints" / "model.safetensors")
    out_folder.publish_result("a", "0123456789", {})
    weights = out_folder.locate_result("a", "0123456789") / "checkpoints" / "model.safetensors"
    assert weights.stat().st_mode & 0o777 == 0o640


def test_the_size_of_a_folder_is_that_of_its_files_without_what_links_lead_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "large").write_bytes(bytes(10000))
    folder = tmp_path / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "small").write_bytes(bytes(3))
    (folder.parent / "link").symlink_to("../large")
    assert measure_folder(folder.parent) == 3 + len("../large")
