"""The `export` step: a model in the formats of other runtimes, each compared with torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import (
    Artifact,
    CheckpointError,
    Count,
    DataRef,
    EmbergeError,
    EvalSource,
    Expected,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Share,
    Step,
    Workspace,
)
from emberge.data import check_eval_sets
from emberge.model_folder import Layout, is_static_model
from emberge.wording import join_some

from emberge_export.probe import Probe, read_probe

if TYPE_CHECKING:
    from emberge_export.parity import Parity


Format = Literal["float32", "float16", "int8", "openvino", "model2vec"]
FILES: dict[Format, str] = {
    "float32": "onnx/model.onnx",
    "float16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_int8.onnx",
    "openvino": "openvino/openvino_model.xml",
    "model2vec": "model2vec/model.safetensors",
}
_STATIC: Format = "model2vec"
_PACKAGES: dict[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
}
# An export in float32 is the same model: less than this is a fault of it. OpenVINO computes in bfloat16 where
# the processor has it.
_SAME: dict[Format, float] = {"float32": 0.9999, "openvino": 0.999, "model2vec": 0.999999}


@dataclass(frozen=True, kw_only=True)
class Export(Step):
    """Export a model to ONNX and OpenVINO in addition to its weights, and measure each file in its runtime.

    The transformer is exported by transformers' own exporters, in float32, in float16, and with int8 weights
    (dynamic quantisation, one scale per channel). Pooling and later modules remain modules of
    SentenceTransformers, as its backends and text-embeddings-inference expect. Then onnxruntime or OpenVINO
    loads each file, and the file is compared with torch: cosine of the embeddings (mean and least), nDCG@10
    on the probe, texts per second. The figures are in the artifact and in the model's card.

    A static model is written as `model2vec` reads it: its vectors, tokenizer and config in a folder of their
    own. The folder is read by these files alone, and its embeddings are those of the model.

    If int8 loses more nDCG@10 than `most_loss`, the run ends with exit code 3.

    Example:
        served:
          export: {model: ./merged, formats: [float32, int8], probe: ./data/catalogue.yaml}
    """

    produces = "model"
    loads = ("torch",)

    model: ModelRef
    """The model, of sentence-transformers or transformers."""
    formats: tuple[Format, ...] = ("float32", "float16", "int8")
    """The files to write: three of ONNX, OpenVINO, and of a static model `model2vec` alone."""
    probe: DataRef | None = None
    """A catalogue whose first retrieval set is embedded; by default a few sentences are embedded."""
    probe_set: str | None = None
    """The name of another retrieval set of the catalogue."""
    queries: Count = 200
    """Largest number of the probe's queries; as many other documents are added to the relevant ones."""
    most_loss: Share = 0.02
    """Largest loss of nDCG@10 by int8 on the probe, 0 to 1."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
        for package in self._find_missing():
            requirement = package if package == "openvino" else "'emberge[export]'"
            yield context.problem(
                f"the package {package} is missing; pip install {requirement}", "formats"
            )
        if not self.formats:
            yield context.problem("there is no format to export to", "formats")
        yield from self._check_probe(context)
        yield from self._check_model(context)

    def _find_missing(self) -> list[str]:
        kinds = {name if name in ("openvino", _STATIC) else "onnx" for name in self.formats}
        packages = [package for kind in sorted(kinds) for package in _PACKAGES.get(kind, ())]
        return [package for package in packages if find_spec(package) is None]

    def _check_probe(self, context: Preflight) -> Iterator[Problem]:
        if self.probe is None:
            if self.probe_set is not None:
                yield context.problem("name the catalogue of the set as 'probe'", "probe_set")
            return
        set_names = (self.probe_set,) if self.probe_set else ()
        sets, faults = check_eval_sets(context, EvalSource(path=self.probe, only=set_names))
        retrieval_sets = [eval_set for eval_set in sets if eval_set.task == "retrieval"]
        if sets and not retrieval_sets:
            yield context.problem("the probe has no retrieval set to take nDCG@10 on", "probe")
        if retrieval_sets:  # of several the first is taken
            first_set = EvalSource(path=self.probe, only=(retrieval_sets[0].name,))
            _, faults = check_eval_sets(context, first_set)
        yield from (context.problem(fault, "probe") for fault in faults)

    def _check_model(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if folder is None:
            return
        try:
            is_static = is_static_model(folder)
            yield from self._check_formats(context, is_static)
            if is_static:
                yield from _check_static_model(context, folder)
            else:
                Layout.read(folder)
        except EmbergeError as error:
            yield context.problem(str(error), "model")

    def _check_formats(self, context: Preflight, is_static: bool) -> Iterator[Problem]:
        """Yield a problem for formats of transformers for a static model, and the other way round."""
        unfit = [name for name in self.formats if (name == _STATIC) != is_static]
        if not unfit:
            return
        reason = (
            f"is a static model and has no transformer to export as {join_some(unfit)}; write formats: "
            f"[{_STATIC}]"
            if is_static
            else f"is no static model, and {_STATIC} has vectors of tokens alone; make one by a step "
            f"static_model, or take {_STATIC} out"
        )
        yield context.problem(f"{self.model} {reason}", "formats")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import require_usable_weights
        from emberge.model_folder import copy_model

        from emberge_export.parity import measured

        model = workspace.model(self.model)
        probe = self._read_probe_set(workspace)
        with workspace.whole_model(model) as folder:
            require_usable_weights(folder)
            copy_model(folder, workspace.folder)
        figures = measured(
            workspace.folder,
            {name: FILES[name] for name in self.formats},
            probe,
            progress=lambda done, total, note: workspace.progress(done, total, "formats", note),
        )
        require_same(model.name, figures)
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details=self._build_details(model, figures, probe, workspace),
        )

    def _build_details(
        self,
        model: Model,
        figures: dict[str, Parity],
        probe: Probe,
        workspace: Workspace,
    ) -> dict[str, Any]:
        failed_requirements = []
        if fault := too_lossy(figures, self.most_loss):
            failed_requirements.append(f"on {probe.name} {fault}")
        return {
            "made_by": "exporting",
            **model.as_base(self.model),
            "probe": probe.name,
            "exported": {
                key: {n: v for n, v in dataclasses.asdict(parity).items() if v is not None}
                for key, parity in figures.items()
            },
            **({"unmet": failed_requirements} if failed_requirements else {}),
        }

    def _read_probe_set(self, workspace: Workspace) -> Probe:
        path: Path | None = workspace.data(self.probe) if self.probe is not None else None
        return read_probe(path, self.probe_set, workspace.readers, self.queries)


def _check_static_model(context: Preflight, folder: Path) -> Iterator[Problem]:
    from emberge_export.static_export import list_static_problems, list_static_warnings

    for message in list_static_problems(folder):
        yield context.problem(message, "model")
    for message in list_static_warnings(folder):
        yield context.warning(message, "model")


def too_lossy(figures: Mapping[str, Parity], most: float) -> str:
    """Return a message if int8 loses more nDCG@10 against torch than `most`; "" if it does not.

    Without int8 or a probe nothing is lost.
    """
    if "int8" not in figures:
        return ""
    torch_ndcg, int8_ndcg = figures["torch"].ndcg_at_10, figures["int8"].ndcg_at_10
    if torch_ndcg is None or int8_ndcg is None or torch_ndcg - int8_ndcg <= most:
        return ""
    return (
        f"int8 loses {torch_ndcg - int8_ndcg:.4f} nDCG@10 and may lose {most:g} (most_loss); leave int8 "
        "out, serve "
        "float16, or allow more"
    )


def require_same(name: str, figures: Mapping[str, Parity]) -> None:
    """Refuse a float32 export whose embeddings differ from torch's.

    Raises:
        CheckpointError: if it does; the message has the cosine.
    """
    for kind, floor in _SAME.items():
        lowest_cosine = figures[kind].least_cosine if kind in figures else 1.0
        if not lowest_cosine >= floor:  # NaN is no number that is large enough
            raise CheckpointError(
                f"'{name}' exported as {kind} gives other embeddings than in torch: the least cosine is "
                f"{lowest_cosine:.6f}, and should be {floor} at least; serve its safetensors, and let the "
                "authors of "
                "transformers know"
            )
