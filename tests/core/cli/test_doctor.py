"""`emberge doctor` says what a machine has and what is missing for what, and shows no secret."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest
from emberge.cli import examination
from emberge.cli.main import main

from tests.support.fixture_types import Capture, Patch
from tests.support.places import ROOT

SECRET = "hf_never_to_be_shown"


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: Patch) -> None:
    """Caches in a folder of the test, and no installed plugin."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EMBERGE_BLOCK", "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)


def doctor(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(["doctor", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def without(monkeypatch: Patch, *missing: str, **versions: str) -> None:
    """Let some distributions be missing, and others have another version."""
    find = importlib.metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions.get(name) or find(name)

    monkeypatch.setattr("importlib.metadata.version", version)


def test_a_sound_machine_lacks_nothing(capsys: Capture) -> None:
    code, out, err = doctor(capsys)
    assert (code, err) == (0, "")
    labels = [line[:10].strip() for line in out.splitlines() if not line.startswith("  ")]
    assert labels[:5] == ["emberge", "torch", "GPUs", "processor", "memory"]
    assert {"disk", "caches", "token", "plugins", "libraries", "extras"} <= {*labels}


def test_what_is_missing_or_old_is_named_with_its_pip_line(
    monkeypatch: Patch, capsys: Capture
) -> None:
    without(monkeypatch, "pypdf")
    code, out, _ = doctor(capsys)
    (line,) = (line for line in out.splitlines() if " pdf " in line and "pip" in line)
    assert "documents that are PDF files" in line
    assert line.endswith("pip install 'emberge[pdf]' (pypdf is missing)")
    assert code == 0  # no recipe needs it
    without(monkeypatch, "peft", pluggy="1.0")
    code, _, err = doctor(capsys)
    assert code == 3
    assert "peft is missing" in err
    assert "pluggy 1.0 is not >=1.5" in err
    assert "'peft>=" in err.partition("pip install")[2]


def test_unusable_torch_or_gpus_are_faults(
    monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("emberge.devices._ACCELERATOR_FILES", (str(tmp_path),))
    code, _, err = doctor(capsys)
    assert code == 3
    assert f"there is a GPU driver ({tmp_path})" in err
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = doctor(capsys)
    assert code == 3
    assert "torch cannot be imported" in err
    assert "extras" in out  # what else there is, is shown


def test_a_token_is_never_shown_and_caches_have_sizes(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    out = doctor(capsys)[1]
    assert "hub: none" in out
    monkeypatch.setattr("huggingface_hub.get_token", lambda: SECRET)
    out = doctor(capsys)[1]
    assert "hub: present" in out
    assert SECRET not in out
    blob = tmp_path / "hub" / "models--me--small" / "blobs" / "one"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 12345)
    (blob.parent / "again").symlink_to(blob)
    out = doctor(capsys)[1]
    assert f"{tmp_path / 'hub'}: 12.3 kB, " in out
    assert "1 repository of the hub" in out
    assert f"{tmp_path / 'cache' / 'emberge'}: 0 bytes, " in out


def test_a_plugin_that_fails_is_a_fault(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine.py").write_text("import nothing_of_this_name")
    code, out, err = doctor(capsys, "--plugin", str(tmp_path / "mine.py"))
    assert code == 3
    assert "nothing_of_this_name" in err
    assert "plugins     one cannot be loaded" in out


def test_each_extra_for_users_says_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert examination.PURPOSES.keys() == project["optional-dependencies"].keys() - {"dev", "docs"}
