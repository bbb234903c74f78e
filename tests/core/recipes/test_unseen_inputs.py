"""A check counts what it could not look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge.cli.main import main


def test_a_check_counts_unseen_inputs_and_long_lists_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "steps:\n"
        "  a:\n    merge: {models: [me/one, me/two], strategy: linear}\n"
        "  b:\n    merge: {models: [me/one, me/three], strategy: linear}\n"
        "  c:\n    train:\n      model: me/one\n      data: {hub: me/texts, task: retrieval}\n"
        "      backbone: text_encoder\n      loss: infonce\n      sampler: batch_shuffle\n"
    )
    assert main(["check", str(path), "--offline"]) == 0
    said = capsys.readouterr()
    assert "4 inputs could not be looked at from here; --long lists them\n" in said.out
    assert "me/one" not in said.err
    assert main(["check", str(path), "--offline", "--long"]) == 0
    said = capsys.readouterr()
    assert len([line for line in said.err.splitlines() if "'me/one'" in line]) == 1
    assert "and 2 other places" in said.err
