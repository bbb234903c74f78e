"""The formats of exported files, and the files by format."""

from __future__ import annotations

from typing import Literal

Format = Literal["float32", "float16", "int8", "gguf"]
Precision = Literal["f32", "f16", "q8_0"]
FILES: dict[Format, str] = {
    "float32": "onnx/model.onnx",
    "float16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_int8.onnx",
    "gguf": "gguf/model-{precision}.gguf",
}
