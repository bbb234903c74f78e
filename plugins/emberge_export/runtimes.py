"""Replacement of a SentenceTransformer's transformer by another runtime; its other modules stay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_OUTPUT = "last_hidden_state"


@contextmanager
def load_runtime(model: Any, path: Path) -> Iterator[None]:
    """Replace a SentenceTransformer's transformer by an exported program inside the `with` block."""
    first = model[0]
    trunk = first.model
    kind = OpenVinoTrunk if path.suffix == ".xml" else OnnxTrunk
    first.model = kind(path, trunk.config)
    try:
        yield
    finally:
        first.model = trunk


class _Trunk(torch.nn.Module):
    """Transformer that a runtime other than torch computes on the CPU."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.names: list[str] = []

    def forward(self, **features: Any) -> dict[str, Tensor]:
        """Return the states of the last layer, in float32."""
        ids = features["input_ids"]
        inputs = {n: features.get(n, torch.zeros_like(ids)).cpu().numpy() for n in self.names}
        states = np.asarray(self.compute(inputs), dtype=np.float32)
        return {_OUTPUT: torch.from_numpy(states)}

    def compute(self, inputs: dict[str, Any]) -> Any:
        """Return the states [texts, tokens, width]; `inputs` maps input names to arrays."""
        raise NotImplementedError


class OnnxTrunk(_Trunk):
    """Transformer in onnxruntime, with as many threads as torch has."""

    def __init__(self, path: Path, config: Any) -> None:
        import onnxruntime

        super().__init__(config)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.names = [node.name for node in self.session.get_inputs()]

    def compute(self, inputs: dict[str, Any]) -> Any:
        return self.session.run([_OUTPUT], inputs)[0]


class OpenVinoTrunk(_Trunk):
    """Transformer in OpenVINO, with as many threads as torch has."""

    def __init__(self, path: Path, config: Any) -> None:
        keep_to_ourselves()
        import openvino

        super().__init__(config)
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        self.names = [port.get_any_name() for port in self.compiled.inputs]

    def compute(self, inputs: dict[str, Any]) -> Any:
        return self.compiled(inputs)[self.compiled.output(_OUTPUT)]


def keep_to_ourselves() -> None:
    """Turn off OpenVINO's telemetry before OpenVINO is imported, as if the telemetry package were missing."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
