"""Export of a model to ONNX, by transformers' own exporters, and to GGUF; embedding with the files."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError
from emberge_encoder import Layout, require_vocabulary
from numpy.typing import NDArray
from torch import Tensor

from emberge_export.formats import Format, Precision

# The limit of an ONNX file that contains its weights, in bytes. Larger weights get a second file, which
# servers find by the ending of its name.
_LARGEST_SINGLE_FILE = 1_900_000_000
_DATA_SUFFIX = "_data"
_OUTPUT = "last_hidden_state"
# Two texts of unlike length, so that neither size is taken for a constant.
_SAMPLE = ("a text to trace the model with", "another")


class ModelExporter:
    """An exporter of one model folder; float32 and int8 share one trace of the transformer.

    `precision` is that of GGUF.
    """

    def __init__(self, folder: Path, precision: Precision = "f16") -> None:
        from sentence_transformers import SentenceTransformer

        self.folder = folder
        self.precision = precision
        settings = {"dtype": torch.float32, "local_files_only": True}
        with silence_exporters():
            self.model: Any = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs=settings,
            ).eval()
        require_vocabulary(self.model.tokenizer, folder)
        self._float32: Any = None

    def embed(self, texts: Sequence[str], path: Path | None = None) -> NDArray[np.float64]:
        """Return the embeddings [n, d] of texts, computed by torch or, with `path`, by an exported file."""
        if path is not None and path.suffix == ".gguf":
            from emberge_export.gguf_file import embed_by_llama_cpp

            return embed_by_llama_cpp(path, texts)
        with (
            replace_trunk(self.model, path) if path is not None else contextlib.nullcontext(),
            torch.inference_mode(),
        ):
            return np.asarray(self.model.encode(list(texts)), np.float64)

    def is_whole(self, text: str) -> bool:
        """Return whether the model reads all tokens of a text, as llama.cpp does."""
        tokens = self.model.tokenizer(text)["input_ids"]
        return len(tokens) <= int(self.model.max_seq_length)

    def write(self, export_format: Format, path: Path) -> int:
        """Write the model in a format to `path`, and return the size of its files in bytes.

        Raises:
            CheckpointError: if the exporter cannot express the model; the message has its reason.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        writers: dict[Format, Callable[[Path], None]] = {
            "float32": lambda target: _save_onnx(self._trace_float32(), target),
            "float16": self._write_half,
            "int8": self._write_int8,
            "gguf": self._write_gguf,
        }
        try:
            with silence_exporters():
                writers[export_format](path)
        except Exception as error:  # torch, transformers and onnx have errors of their own
            raise CheckpointError(
                f"{self.folder}: cannot be exported as {export_format}: {_find_reason(error)}; "
                "serve its safetensors, or leave this format out"
            ) from error
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*"))

    def _trace_float32(self) -> Any:
        if self._float32 is None:
            self._float32 = self._trace_onnx(self.model[0].model)
        return self._float32

    def _tokenise_sample(self) -> dict[str, Tensor]:
        features = self.model.preprocess(list(_SAMPLE))
        return {key: value for key, value in features.items() if isinstance(value, Tensor)}

    def _trace_onnx(self, trunk: Any) -> Any:
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        exporter: Any = OnnxExporter  # which has no types
        exported = exporter().export(trunk, self._tokenise_sample(), OnnxConfig(dynamic=True))
        return exported.components["model"].program

    def _write_half(self, path: Path) -> None:
        _save_onnx(self._trace_onnx(copy.deepcopy(self.model[0].model).half()), path)

    def _write_int8(self, path: Path) -> None:
        from transformers.exporters.configs import ExportFormat
        from transformers.exporters.quantizers.quantizer_onnxruntime import (
            OnnxRuntimeDynamicConfig,
            OnnxRuntimeQuantizer,
        )

        quantizer = OnnxRuntimeQuantizer(OnnxRuntimeDynamicConfig(per_channel=True))
        _save_onnx(
            quantizer.quantize(self._trace_float32(), self._tokenise_sample(), ExportFormat.ONNX),
            path,
        )

    def _write_gguf(self, path: Path) -> None:
        from emberge_export.gguf_file import write_gguf

        write_gguf(
            self.model[0].model,
            self.model.tokenizer,
            Layout.read(self.folder),
            self.precision,
            path,
        )


def _save_onnx(program: Any, path: Path) -> None:
    import onnx_ir

    size = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    data_file = f"{path.name}{_DATA_SUFFIX}" if size > _LARGEST_SINGLE_FILE else None
    onnx_ir.save(program, str(path), external_data=data_file)


def _find_reason(error: BaseException) -> str:
    """Return the first line of the error at the end of the chain of causes, which names an operator."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def silence_exporters() -> Iterator[None]:
    """Suppress what exporters print, log and warn of inside the `with` block; errors are still logged."""
    old_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(old_level)


@contextlib.contextmanager
def replace_trunk(model: Any, path: Path) -> Iterator[None]:
    """Let a SentenceTransformer use an exported file in place of its transformer inside the `with` block."""
    first = model[0]
    trunk = first.model
    first.model = OnnxTrunk(path, trunk.config)
    try:
        yield
    finally:
        first.model = trunk


class OnnxTrunk(torch.nn.Module):
    """A transformer that onnxruntime computes, with as many threads as torch has."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, path: Path, config: Any) -> None:
        import onnxruntime

        super().__init__()
        self.config = config
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._names = [node.name for node in self._session.get_inputs()]

    def forward(self, **features: Any) -> dict[str, Tensor]:
        """Return the states of the last layer, in float32."""
        ids = features["input_ids"]
        inputs = {n: features.get(n, torch.zeros_like(ids)).cpu().numpy() for n in self._names}
        states = np.asarray(self._session.run([_OUTPUT], inputs)[0], dtype=np.float32)
        return {_OUTPUT: torch.from_numpy(states)}
