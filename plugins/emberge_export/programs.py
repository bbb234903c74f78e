"""Exports of a model's transformer to other runtimes, written by transformers' own exporters."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from emberge import CheckpointError
from emberge.model_folder import require_vocabulary

from emberge_export.runtimes import keep_to_ourselves, load_runtime

# A program with its weights in one file has to be smaller; servers fetch what is beside it by this name.
_LARGEST_SINGLE_FILE = 1_900_000_000
_DATA_SUFFIX = "_data"
# Two texts of unlike length, so that neither size is taken for a constant.
_SAMPLE = ("a text to trace the model with", "another")
# As torch's exporter names one that it has no translation of, and as OpenVINO's does.
_OPERATOR = re.compile(r"OpOverload\(op='([\w.]+)'|conversion rule found for operations: ([\w:.]+)")


class Exporting:
    """Exporter of one model folder; formats that need the same torch trace share it."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self.folder = folder
        settings = {"dtype": torch.float32, "local_files_only": True}
        with quiet():
            self.model: Any = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs=settings,
            ).eval()
        require_vocabulary(self.model.tokenizer, folder)
        self._float32: Any = None

    @contextlib.contextmanager
    def load(self, path: Path) -> Iterator[Any]:
        """Yield the model with its transformer replaced by an exported program, for the `with` block."""
        with load_runtime(self.model, path):
            yield self.model

    def write(self, name: str, path: Path) -> int:
        """Write the program of a format, and return the size of its files in bytes.

        Raises:
            CheckpointError: if the exporter cannot express the model; the message has the operator, if known.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        writers: dict[str, Callable[[Path], None]] = {
            "float32": lambda target: _save_onnx(self._trace_float32(), target),
            "float16": self._write_half,
            "int8": self._write_int8,
            "openvino": self._write_openvino,
        }
        try:
            with quiet():
                writers[name](path)
        except Exception as error:  # each part of the way has errors of its own
            raise CheckpointError(
                f"{self.folder}: cannot be exported as {name}{_find_operator(error)}: {_find_reason(error)}; "
                "serve its safetensors, or leave this format out"
            ) from error
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*"))

    def _trace_float32(self) -> Any:
        if self._float32 is None:
            self._float32 = self._trace_onnx(self._trunk)
        return self._float32

    @property
    def _trunk(self) -> Any:
        return self.model[0].auto_model

    def _encode_sample(self) -> dict[str, Any]:
        features = self.model.preprocess(list(_SAMPLE))
        return {key: value for key, value in features.items() if isinstance(value, torch.Tensor)}

    def _trace_onnx(self, trunk: Any) -> Any:
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        exporter: Any = OnnxExporter  # which has no types
        exported = exporter().export(trunk, self._encode_sample(), OnnxConfig(dynamic=True))
        return exported.components["model"].program

    def _write_half(self, path: Path) -> None:
        _save_onnx(self._trace_onnx(copy.deepcopy(self._trunk).half()), path)

    def _write_int8(self, path: Path) -> None:
        from transformers.exporters.configs import ExportFormat
        from transformers.exporters.quantizers.quantizer_onnxruntime import (
            OnnxRuntimeDynamicConfig,
            OnnxRuntimeQuantizer,
        )

        quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True))
        _save_onnx(
            quantizer.quantize(self._trace_float32(), self._encode_sample(), ExportFormat.ONNX),
            path,
        )

    def _write_openvino(self, path: Path) -> None:
        keep_to_ourselves()
        from transformers.exporters.configs import OpenVINOConfig
        from transformers.exporters.exporter_openvino import OpenVINOExporter

        exporter: Any = OpenVINOExporter
        exported = exporter().export(
            self._trunk, self._encode_sample(), OpenVINOConfig(dynamic=True)
        )
        exporter.save_program(exported.components["model"].program, path)


def _save_onnx(program: Any, path: Path) -> None:
    import onnx_ir

    size = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    data_file = f"{path.name}{_DATA_SUFFIX}" if size > _LARGEST_SINGLE_FILE else None
    onnx_ir.save(program, str(path), external_data=data_file)


def _find_operator(error: BaseException) -> str:
    """Return ` (operator …)` if the error names an operator that cannot be exported, else ""."""
    texts = (str(cause) for cause in _list_causes(error))
    operator = next((match for text in texts if (match := _OPERATOR.search(text))), None)
    return f" (operator {operator[1] or operator[2]})" if operator is not None else ""


def _find_reason(error: BaseException) -> str:
    """Return the first line of the error at the end of the chain of causes."""
    *_, root_cause = _list_causes(error)
    return next(
        (line for line in str(root_cause).splitlines() if line.strip()), type(root_cause).__name__
    )


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress output, log lines and warnings of exporters."""
    old_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(old_level)
