"""The `export` step: a model in the formats of other runtimes, each compared with torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
from emberge_encoder import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Format = Literal["float32", "float16", "int8"]
FILES: dict[Format, str] = {
    "float32": "onnx/model.onnx",
    "float16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_int8.onnx",
}
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The least cosine of a sound float32 export, which is the same model.
_LEAST_COSINE = 0.9999
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
    """Export a model to ONNX in addition to its weights, and compare each file with torch.

    The transformer is exported by transformers' own exporters, in float32, in float16, and with int8 weights
    (dynamic quantisation, one scale per channel). Pooling and later modules remain modules of
    SentenceTransformers, as its backends and text-embeddings-inference expect. Then onnxruntime loads each
    file, and its embeddings of a few sentences are compared with torch's. The mean and the least
    cosine are in the artifact and in the model's card.

    Example:
        served:
          export: {model: ./merged, formats: [float32, int8]}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The model, of sentence-transformers or transformers."""
    formats: tuple[Format, ...] = ("float32", "float16", "int8")
    """The files of ONNX to write."""

    def __post_init__(self) -> None:
        if not self.formats:
            raise ValueError("formats: there is no format to export to")

    def check(self, context: Preflight) -> Iterator[Problem]:
        for package in _PACKAGES:
            if find_spec(package) is None:
                yield context.problem(
                    f"the package {package} is missing; pip install 'emberge[export]'", "formats"
                )
        folder = context.whole_model(self.model)
        if folder is not None:
            try:
                Layout.read(folder)
            except EmbergeError as error:
                yield context.problem(str(error), "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.model_folder import copy_model

        model = workspace.model(self.model)
        with workspace.whole_model(model) as folder:
            _require_finite_weights(folder)
            copy_model(folder, workspace.folder)
        figures = self._write_files(workspace)
        _require_equal_embeddings(model.name, figures)
        details = {"exported": {key: dataclasses.asdict(one) for key, one in figures.items()}}
        return model.describe_change(self.model, "exporting", details)

    def _write_files(self, workspace: Workspace) -> dict[str, Parity]:
        """Export the model in the step's folder, and return the figures of torch and of each file.

        Raises:
            CheckpointError: if the model cannot be exported, or embeddings are not finite.
        """
        from emberge_export.onnx_exporter import ModelExporter

        folder = workspace.folder
        exporter = ModelExporter(folder)
        expected = exporter.embed(_SENTENCES)
        size = Checkpoint(folder).weight_bytes
        figures = {"torch": Parity.measure(folder, "model.safetensors", size, expected, expected)}
        for number, number_format in enumerate(self.formats):
            workspace.progress(number, len(self.formats), "formats", number_format)
            file = FILES[number_format]
            size = exporter.write(number_format, folder / file)
            embeddings = exporter.embed(_SENTENCES, folder / file)
            figures[number_format] = Parity.measure(folder, file, size, embeddings, expected)
        return figures


@dataclass(frozen=True)
class Parity:
    """Figures of one file: its size, and the mean and least cosine of its embeddings with torch's."""

    file: str
    megabytes: float
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
        return cls(file, round(size / 1e6, 2), mean, least)


def _require_finite_weights(folder: Path) -> None:
    """Require that no tensor has NaN or infinity, not even one that the compared sentences do not reach.

    Raises:
        CheckpointError: if there is one; the message has the tensor's name.
    """
    import torch
    from emberge.tensor_files import TensorReader

    with TensorReader() as reader:
        for name, spec in Checkpoint(folder).specs.items():
            values = torch.empty(spec.elements if spec.mergeable else 0)
            reader.read(spec, 0, values)
            if not values.isfinite().all():
                raise CheckpointError(
                    f"{folder}: '{name}' has NaN or infinite values; make the model again"
                )


def _require_equal_embeddings(name: str, figures: Mapping[str, Parity]) -> None:
    """Require that a float32 export, if there is one, gives torch's embeddings.

    Raises:
        CheckpointError: if it does not; the message has the least cosine.
    """
    lowest_cosine = figures["float32"].least_cosine if "float32" in figures else 1.0
    if lowest_cosine < _LEAST_COSINE:
        raise CheckpointError(
            f"'{name}' exported as float32 gives other embeddings than in torch: the least cosine is "
            f"{lowest_cosine:.6f}, and should be {_LEAST_COSINE} at least; serve its safetensors, and let "
            "the authors of transformers know"
        )
