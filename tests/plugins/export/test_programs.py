"""What exporters and runtimes are asked for, seen with others in their places."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emberge import CheckpointError
from emberge_export import programs
from emberge_export.programs import Exporting, RuntimeTrunk, quiet

# ── programs ────────────────────────────────────────────────────────────────────────────────────────

SAMPLE = {"input_ids": torch.ones(2, 3), "texts": ["not a tensor"]}
GIVEN = {"input_ids": SAMPLE["input_ids"]}


class Library:
    """The libraries of an export: they note what they are asked for, and write small files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.size = 10
        self.trunk = torch.nn.Linear(2, 2)
        exporters = "transformers.exporters"
        onnx, openvino = (self._exporter(name) for name in ("onnx", "openvino"))
        quantizer = f"{exporters}.quantizers.quantizer_onnxruntime"
        for name, found in {
            "onnx_ir": {"save": self.save},
            f"{exporters}.configs": {
                "OnnxConfig": lambda **o: ("onnx", o),
                "OpenVINOConfig": lambda **o: ("openvino", o),
                "ExportFormat": SimpleNamespace(ONNX="as onnx"),
            },
            f"{exporters}.exporter_onnx": {"OnnxExporter": onnx},
            f"{exporters}.exporter_openvino": {"OpenVINOExporter": openvino},
            quantizer: {
                "OnnxRuntimeDynamicConfig": lambda **o: ("int8", o),
                "OnnxRuntimeQuantizer": lambda config: SimpleNamespace(
                    quantize=lambda *given: self.quantize(config, *given)
                ),
            },
        }.items():
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(**found))  # type: ignore[arg-type]
        monkeypatch.setattr("sentence_transformers.SentenceTransformer", self.load)
        monkeypatch.setattr(programs, "require_vocabulary", lambda *one: self.asked.append(one))
        monkeypatch.setattr(programs, "_stop_telemetry", lambda: self.asked.append("alone"))

    def load(self, name: str, **options: Any) -> Any:
        self.asked.append((name, options))
        library = self

        class Model(list[Any]):
            tokenizer = "tokenizer"

            def eval(self) -> Any:
                library.asked.append("eval")
                return self

            def preprocess(self, texts: list[str]) -> Any:
                assert len(texts) == 2
                assert len({len(text.split()) for text in texts}) == 2
                return SAMPLE

        return Model([SimpleNamespace(auto_model=self.trunk)])

    def _exporter(self, kind: str) -> Any:
        library = self

        class Exporter:
            def export(self, trunk: Any, given: Any, config: Any) -> Any:
                assert given.keys() == GIVEN.keys()
                assert config == (kind, {"dynamic": True})
                library.asked.append((f"export {kind}", trunk.weight.dtype))
                program = library.program(kind)
                return SimpleNamespace(components={"model": SimpleNamespace(program=program)})

            @staticmethod
            def save_program(program: Any, path: Path) -> None:
                library.save(program, str(path))

        return Exporter

    def program(self, kind: str) -> Any:
        half = SimpleNamespace(const_value=SimpleNamespace(nbytes=self.size))
        return SimpleNamespace(
            kind=kind, graph=SimpleNamespace(initializers={"a": half, "b": half})
        )

    def quantize(self, config: Any, program: Any, given: Any, kind: Any) -> Any:
        assert config == ("int8", {"per_channel": True})
        assert (program.kind, given.keys(), kind) == ("onnx", GIVEN.keys(), "as onnx")
        self.asked.append("quantize")
        return self.program("int8")

    def save(self, program: Any, path: str, **options: Any) -> None:
        self.asked.append(("save", program.kind, Path(path).name, options))
        for name in {Path(path), Path(path).with_suffix(".bin")}:
            name.write_bytes(b"x" * 7)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


def test_each_format_is_written_by_its_exporter_and_float32_is_traced_once(
    library: Library, tmp_path: Path
) -> None:
    exporting = Exporting(tmp_path)
    library.asked.clear()
    place = tmp_path / "sub" / "onnx"
    place.mkdir(parents=True)
    (place / "model_other.bin").write_bytes(b"of another")
    assert exporting.write("float32", place / "model.onnx") == 14
    assert exporting.write("int8", place / "model_int8.onnx") == 14
    assert exporting.write("float16", place / "model_fp16.onnx") == 14
    assert exporting.write("openvino", tmp_path / "new" / "openvino" / "model.xml") == 14
    assert library.asked == [
        ("export onnx", torch.float32),
        ("save", "onnx", "model.onnx", {"external_data": None}),
        "quantize",
        ("save", "int8", "model_int8.onnx", {"external_data": None}),
        ("export onnx", torch.float16),
        ("save", "onnx", "model_fp16.onnx", {"external_data": None}),
        "alone",
        ("export openvino", torch.float32),
        ("save", "openvino", "model.xml", {}),
    ]
    assert library.trunk.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("size", "beside"), [(950_000_000, None), (950_000_001, "model.onnx_data")]
)
def test_weights_of_a_large_program_are_beside_it(
    library: Library, tmp_path: Path, size: int, beside: str | None
) -> None:
    library.size = size
    Exporting(tmp_path).write("float32", tmp_path / "model.onnx")
    assert library.asked[-1] == ("save", "onnx", "model.onnx", {"external_data": beside})


@pytest.mark.parametrize(
    ("text", "reason"), [("\n \nno op here\nmore", "no op here"), ("", "RuntimeError")]
)
def test_a_model_that_cannot_be_exported_is_refused_with_the_first_error(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    def save(*_: Any, **__: Any) -> None:
        raise ValueError("outer") from RuntimeError(text)

    exporting = Exporting(tmp_path)
    monkeypatch.setattr(sys.modules["onnx_ir"], "save", save)
    with pytest.raises(CheckpointError) as caught:
        exporting.write("float32", tmp_path / "model.onnx")
    assert str(caught.value).startswith(
        f"{tmp_path}: cannot be exported as float32: {reason}; serve"
    )


def test_what_exporters_print_log_and_warn_of_stays_off_the_terminal(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with contextlib.suppress(KeyError), quiet():
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


# ── runtimes ────────────────────────────────────────────────────────────────────────────────────────


def test_openvino_has_torchs_threads_and_is_kept_from_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Program:
        inputs = (SimpleNamespace(get_any_name=lambda: "input_ids"),)

        def output(self, name: str) -> str:
            return f"output {name}"

        def __call__(self, given: dict[str, Any]) -> Any:
            return {"output last_hidden_state": given["input_ids"][..., None]}

    def compile_model(*given: Any) -> Any:
        assert sys.modules["openvino_telemetry"] is None
        asked.append(given)
        return Program()

    fake = SimpleNamespace(Core=lambda: SimpleNamespace(compile_model=compile_model))
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    trunk = RuntimeTrunk(Path("a.xml"), "config")
    assert asked == [("a.xml", "CPU", {"INFERENCE_NUM_THREADS": 3})]
    assert trunk.config == "config"
    found = trunk(input_ids=torch.tensor([[5, 6]]))["last_hidden_state"]
    assert found.tolist() == [[[5.0], [6.0]]]
    monkeypatch.setitem(sys.modules, "openvino_telemetry", fake)  # type: ignore[arg-type]
    programs._stop_telemetry()
    assert sys.modules["openvino_telemetry"] is fake  # type: ignore[comparison-overlap]
    monkeypatch.delitem(sys.modules, "openvino_telemetry")
