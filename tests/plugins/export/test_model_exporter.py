"""ONNX files: where their weights are, why an export fails, and what exporters may not print."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge_export.model_exporter import _find_reason, _save_onnx, silence_exporters


@pytest.mark.parametrize(
    ("size", "beside"), [(950_000_000, None), (950_000_001, "model.onnx_data")]
)
def test_weights_of_a_large_model_are_in_a_file_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, beside: str | None
) -> None:
    saved: list[Any] = []
    fake = SimpleNamespace(save=lambda _program, path, **options: saved.append((path, options)))
    monkeypatch.setitem(sys.modules, "onnx_ir", fake)  # type: ignore[arg-type]
    half = SimpleNamespace(const_value=SimpleNamespace(nbytes=size))
    program = SimpleNamespace(graph=SimpleNamespace(initializers={"a": half, "b": half}))
    _save_onnx(program, tmp_path / "model.onnx")
    assert saved == [(str(tmp_path / "model.onnx"), {"external_data": beside})]


@pytest.mark.parametrize(
    ("text", "reason"), [("\n \nno op here\nmore", "no op here"), ("", "RuntimeError")]
)
def test_the_reason_is_the_first_line_of_the_original_error(text: str, reason: str) -> None:
    outer = ValueError("outer")
    outer.__cause__ = RuntimeError(text)
    assert _find_reason(outer) == reason


def test_output_warnings_and_log_lines_of_exporters_are_suppressed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with contextlib.suppress(KeyError), silence_exporters():
            print("printed")
            logging.getLogger("exporter").warning("logged")
            warnings.warn("warned", stacklevel=1)
            logging.getLogger("exporter").error("an error")
            raise KeyError
        assert not seen
        warnings.warn("after", stacklevel=1)
        assert len(seen) == 1
    assert capsys.readouterr().out == ""
    assert [one.message for one in caplog.records] == ["an error"]
    assert logging.root.manager.disable == before
