"""The `export` step: a model in the formats of other runtimes, each compared with torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.model_folder import Checkpoint
from emberge_encoder import Layout, is_static_model, is_static_result

from emberge_export.formats import FILES, Format, Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ONNX_PACKAGES, _GGUF_PACKAGES = ("onnx", "onnxscript", "onnxruntime"), ("gguf", "xllamacpp")
# The least cosines with torch of exports that compute the same model, by format or precision.
_LEAST_COSINES = {"float32": 0.9999, "f32": 0.9999, "f16": 0.9999, "q8_0": 0.99}
_STATIC = "a static model has no transformer to export; serve its folder"
# Modules after the transformer that a GGUF file of llama.cpp can state, or that change no direction.
_GGUF_MODULES = frozenset({"Pooling", "Normalize", "Dropout"})
# Short and long texts, in several scripts, with numbers and code.
_SENTENCES = (
    "a cat",
    "The committee postponed its decision until the auditors had seen all of the accounts.",
    "How do I list every file that was changed in the last two days?",
    "Die Brücke bleibt wegen Bauarbeiten bis Ende Oktober gesperrt.",
    "Où peut-on renouveler une carte d'identité le samedi matin ?",
    "El volcán entró en erupción poco después de la medianoche.",
    "天气预报说明天下午会下雨。",
    "Сколько стоит билет до Санкт-Петербурга?",
    "for (int i = 0; i < n; ++i) total += values[i];",
    "SELECT name, count(*) FROM visits WHERE year = 2021 GROUP BY name;",
    "3.14159, 2.71828, 1.41421",
    "Mitochondria produce most of the chemical energy that a cell needs, and have DNA of their own, which "
    "is inherited from the mother; this is why they are of use for tracing lines of descent.",
    "not bad at all",
    "bad, not good at all",
    "Whisk the eggs with the sugar until pale, fold in the flour, and bake for half an hour.",
)


@dataclass(frozen=True, kw_only=True)
class Export(Step):
    """Export a model to ONNX and GGUF in addition to its weights, and compare each file with torch.

    `float32`, `float16` and `int8` are files of ONNX. The transformer is exported by transformers' own
    exporters, in float32, in float16, and with int8 weights (dynamic quantisation, one scale per channel).
    Pooling and later modules remain modules of SentenceTransformers, as its backends and
    text-embeddings-inference expect.

    `gguf` is one file for llama.cpp, Ollama and LM Studio, with tokenizer and pooling; llama.cpp scales
    embeddings to length 1 unless it is told otherwise. It has BERT, XLM-RoBERTa, ModernBERT, Qwen3 and
    the bidirectional Gemma 3. Prompts are not in it, and longer texts are not cut.

    Then onnxruntime or llama.cpp loads each file, and its embeddings of a few sentences are compared with
    torch's. The mean and the least cosine are in the artifact and in the model's card.

    Example:
        served:
          export: {model: ./merged, formats: [int8, gguf], precision: q8_0}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The model, of sentence-transformers or transformers."""
    formats: tuple[Format, ...] = ("float32", "float16", "int8")
    """The files to write."""
    precision: Precision = "f16"
    """The precision of `gguf`; `q8_0` has 8 bits, and a scale for each 32 numbers."""

    def __post_init__(self) -> None:
        if not self.formats:
            raise ValueError("formats: there is no format to export to")

    def check(self, context: Preflight) -> Iterator[Problem]:
        onnx = _ONNX_PACKAGES if set(self.formats) - {"gguf"} else ()
        for package in (*onnx, *(_GGUF_PACKAGES if "gguf" in self.formats else ())):
            if find_spec(package) is None:
                yield context.problem(
                    f"the package {package} is missing; pip install 'emberge[export]'", "formats"
                )
        folder = context.whole_model(self.model)
        if is_static_result(self.model, context):
            yield context.problem(_STATIC, "model")
        elif folder is not None:
            try:
                layout = Layout.read(folder)
            except EmbergeError as error:
                yield context.problem(str(error), "model")
                return
            if "gguf" in self.formats:
                yield from _find_gguf_problems(layout, context)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.model_folder import copy_model

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            if is_static_model(folder):
                raise CheckpointError(f"'{model.name}': {_STATIC}")
            _require_finite_weights(folder)
            copy_model(folder, workspace.folder)
        figures = self._write_files(workspace)
        _require_equal_embeddings(model.name, figures)
        details = {"exported": {key: dataclasses.asdict(one) for key, one in figures.items()}}
        return model.describe_change(self.model, "exporting", details)

    def _write_files(self, workspace: Workspace) -> dict[str, Parity]:
        """Export the model in the step's folder, and return the figures of torch and of each file."""
        from emberge_export.model_exporter import ModelExporter

        folder = workspace.folder
        exporter = ModelExporter(folder, self.precision)
        texts = [
            text for text in _SENTENCES if "gguf" not in self.formats or exporter.is_whole(text)
        ]
        expected = exporter.embed(texts)
        size = Checkpoint(folder).weight_bytes
        figures = {"torch": Parity.measure(folder, "model.safetensors", size, expected, expected)}
        for number, export_format in enumerate(self.formats):
            workspace.progress(number, len(self.formats), "formats", export_format)
            file = FILES[export_format].format(precision=self.precision)
            size = exporter.write(export_format, folder / file)
            embeddings = exporter.embed(texts, folder / file)
            key = self.precision if export_format == "gguf" else export_format
            figures[key] = Parity.measure(folder, file, size, embeddings, expected)
        return figures


@dataclass(frozen=True)
class Parity:
    """Figures of one file: its size, and mean and least cosine of `texts` embeddings with torch's."""

    file: str
    megabytes: float
    texts: int
    cosine: float
    least_cosine: float

    @classmethod
    def measure(
        cls,
        folder: Path,
        file: str,
        size: int,
        embeddings: NDArray[np.float64],
        torch_embeddings: NDArray[np.float64],
    ) -> Parity:
        """Return the figures of a file of `size` bytes, from its embeddings [n, d] and those of torch.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        import numpy as np
        import torch

        if not np.isfinite(embeddings).all():
            raise CheckpointError(
                f"{folder / file}: gives embeddings that are not finite; leave out the format whose numbers "
                "are too small for it, or mend the model"
            )
        cosines = torch.nn.functional.cosine_similarity(
            torch.from_numpy(embeddings), torch.from_numpy(torch_embeddings)
        )
        mean, least = (round(float(one), 6) for one in (cosines.mean(), cosines.min()))
        return cls(file, round(size / 1e6, 2), len(embeddings), mean, least)


def _require_finite_weights(folder: Path) -> None:
    """Require that no tensor has NaN or infinity, not even one that the compared sentences do not reach."""
    name = Checkpoint(folder).find_bad_tensor()
    if name is not None:
        raise CheckpointError(
            f"{folder}: '{name}' has NaN or infinite values; make the model again"
        )


def _find_gguf_problems(layout: Layout, context: Preflight) -> Iterator[Problem]:
    """Yield what a GGUF file cannot state of a model: modules, several poolings, and prompts."""
    for module in layout.modules:
        if module.kind not in _GGUF_MODULES:
            yield context.problem(f"llama.cpp has no {module.kind} after pooling", "formats")
    if not layout.include_prompt:
        yield context.problem("llama.cpp pools the tokens of prompts too", "formats")
    if any(layout.prompts.values()):
        yield context.warning(
            "a GGUF file has no prompts: whoever embeds texts with it writes the prompt before each",
            "formats",
        )


def _require_equal_embeddings(name: str, figures: Mapping[str, Parity]) -> None:
    """Require that exports which compute the same model give torch's embeddings."""
    for key, least_cosine in _LEAST_COSINES.items():
        if key in figures and figures[key].least_cosine < least_cosine:
            raise CheckpointError(
                f"'{name}' exported as {key} gives other embeddings than in torch: the least cosine is "
                f"{figures[key].least_cosine:.6f}, and should be {least_cosine} at least; "
                "serve its safetensors"
            )
