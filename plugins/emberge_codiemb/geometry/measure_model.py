"""Partial step of `geometry`: the measures of one model, or of the checkpoints that a training kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    DataError,
    Dataset,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    TokenisedText,
    Workspace,
    component,
)
from emberge.contracts import TokenEncoder
from emberge.files import write_text

from emberge_codiemb.geometry.geometry_result import MeasuredModel, MeasuredSet
from emberge_codiemb.geometry.token_geometry import (
    MEASURES,
    EntropyOf,
    TokenGeometry,
    Tolerance,
)

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextEmbedder
    from numpy.typing import NDArray

    Kept = Sequence[NDArray[np.bool_]]


FILE = "measured.json"


@dataclass(frozen=True, kw_only=True)
class GeometryOptions:
    """Options of a `geometry` step that its partial steps share."""

    data: tuple[DataEntry, ...] = ()
    """Data sets whose texts' tokens are measured, set by set; each text counts once."""
    special_tokens: bool = True
    """Measure special tokens, such as the first and the last, like other tokens, as in the paper."""
    entropy_of: EntropyOf = "squares"
    """Shares whose entropy is computed: of squared singular values, or of the `values` themselves."""
    tolerance: Tolerance = "float32"
    """Dtype whose epsilon is the smallest relative size of a singular value, computed in float64."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint."""

    @property
    def measure(self) -> TokenGeometry:
        """The token measures, with these options."""
        return TokenGeometry(self.entropy_of, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class MeasureModel(GeometryOptions, Step):
    """Geometry of one reference's models on data sets, and their embeddings of a probe set."""

    produces = "file"

    model: ModelRef
    probe: tuple[DataEntry, ...] = ()
    neighbours: int = 0
    """Number of other texts that each text of the probe set must have."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        for message in self.backbone.describe(folder).problems if folder is not None else ():
            yield context.problem(message, "models")

    def run(self, workspace: Workspace) -> Artifact:
        sets, probe = (
            self._read_texts(self.data, workspace),
            self._read_texts(self.probe, workspace),
        )
        _require_neighbours(probe, self.neighbours)
        models = workspace.models(self.model)
        measured_models = [
            self._measured(model, number, sets, probe, workspace)
            for number, model in enumerate(models)
        ]
        plain = {
            "models": [dataclasses.asdict(measured_model) for measured_model in measured_models]
        }
        write_text(workspace.folder / FILE, json.dumps(plain, indent=1, ensure_ascii=False))
        return Artifact(kind="file", parents=tuple(model.fingerprint for model in models))

    def _read_texts(self, data: Sequence[DataEntry], workspace: Workspace) -> list[SetTexts]:
        from emberge.data import step_datasets

        return [SetTexts.of(dataset) for dataset in step_datasets(workspace, data)]

    def _measured(
        self,
        model: Model,
        number: int,
        sets: Sequence[SetTexts],
        probe: Sequence[SetTexts],
        workspace: Workspace,
    ) -> MeasuredModel:
        """Measure one model, and write its embeddings of the probe set into the step's folder.

        Raises:
            CheckpointError: if the encoder is not a `TokenEncoder`, or embeddings are not finite.
        """
        import numpy as np
        from emberge.encoding import TextEmbedder

        progress = _MeasureProgress(workspace, model.name)
        with workspace.whole_model(model) as folder:
            encoder = self.backbone.load(folder, device=workspace.machine.device, dtype="float32")
            if sets and not isinstance(encoder, TokenEncoder):
                raise CheckpointError(
                    f"{model.name}: its encoder ({type(encoder).__name__}) gives no hidden states of tokens "
                    "(TokenEncoder), of which a geometry is; choose another backbone, or leave `data` out "
                    "for drift alone"
                )
            embedder = TextEmbedder(
                encoder, store=workspace.store, progress=progress, model=model.name
            )
            measured = self._measure_sets(model, sets, embedder, workspace, progress)
            if not probe:
                return MeasuredModel(model.name, model.fingerprint, measured)
            progress.begin("the probe set")
            tokens = [text for set_texts in probe for text in set_texts.tokens(embedder)]
            file = f"probe-{number}.npy"
            embeddings = embedder.embed_tokens(tokens)
            np.save(workspace.folder / file, embeddings)
            return MeasuredModel(model.name, model.fingerprint, measured, file)

    def _measure_sets(
        self,
        model: Model,
        sets: Sequence[SetTexts],
        embedder: TextEmbedder,
        workspace: Workspace,
        shown: _MeasureProgress,
    ) -> dict[str, MeasuredSet]:
        """Measure each set, or read the measures that a killed run finished, and return them."""
        # All are tokenised first, so that a set without a text to measure is found before any work.
        tokens = {set_texts.name: set_texts.tokens(embedder) for set_texts in sets}
        masks = {name: self._mask_tokens(name, texts, embedder) for name, texts in tokens.items()}
        measured = {}
        for number, (name, texts) in enumerate(tokens.items()):
            path = workspace.work / f"{model.fingerprint[:32]}-{number}.json"
            if path.is_file():
                measured[name] = MeasuredSet(**json.loads(path.read_text(encoding="utf-8")))
                continue
            shown.begin(name)
            where = f"{model.name} on data set '{name}'"
            measured[name] = measure_texts(self.measure, embedder, texts, masks[name], where)
            write_text(path, json.dumps(dataclasses.asdict(measured[name])))
        return measured

    def _mask_tokens(
        self, name: str, texts: Sequence[TokenisedText], embedder: TextEmbedder
    ) -> Kept:
        """Return the mask of each text's measured tokens.

        Raises:
            DataError: if no text of a set has two such tokens.
        """
        import numpy as np

        if self.special_tokens:
            masks: Kept = [np.ones(len(text.ids), bool) for text in texts]
        else:
            masks = embedder.text_tokens(texts)
        if all(mask.sum() < 2 for mask in masks):
            exception = "" if self.special_tokens else " beside special ones"
            raise DataError(
                f"data set '{name}': none of its {len(texts)} texts has two tokens{exception}, and one token "
                "alone has no geometry; choose a set of longer texts"
            )
        return masks


def measure_texts(
    measure: TokenGeometry,
    embedder: TextEmbedder,
    texts: Sequence[TokenisedText],
    masks: Kept,
    location: str,
) -> MeasuredSet:
    """Return the measures of one model over texts; `location` names the model and the texts in errors.

    Raises:
        CheckpointError: if hidden states are not finite, or all zero.
    """
    import numpy as np

    values_by_measure = {name: np.full(len(texts), np.nan) for name in MEASURES}
    dtype = ""
    for places, states in embedder.token_states(texts, masks):
        if states.shape[1] < 2:
            break  # nor has any text after it more tokens
        if not bool(states.isfinite().all()):
            raise CheckpointError(f"{location}: hidden states are not finite; is the model sound?")
        dtype = str(states.dtype).removeprefix("torch.")
        for name, values in measure(states).items():
            values_by_measure[name][places] = values
    if np.isnan(values_by_measure[MEASURES[0]]).all():
        raise CheckpointError(f"{location}: hidden states are all zero; is the model sound?")
    return MeasuredSet.of(values_by_measure, dtype)


def _require_neighbours(probe: Sequence[SetTexts], neighbours: int) -> None:
    """Refuse a probe set with fewer texts than the neighbours asked for."""
    count = sum(len(set_texts) for set_texts in probe)
    if probe and count <= neighbours:
        raise DataError(few_texts(count, neighbours))


def few_texts(count: int, neighbours: int) -> str:
    """Return the message that a probe set has too few texts for the number of neighbours."""
    return (
        f"the probe set has {count} distinct texts, and each needs {neighbours} neighbours among the "
        "others: add texts, or ask for fewer neighbours"
    )


def read_models(folder: Path) -> list[MeasuredModel]:
    """Read the measured models from the folder of a part."""
    content: Mapping[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [MeasuredModel.read(values) for values in content["models"]]


class _MeasureProgress:
    """Progress of one model, with the name of the set that it reads."""

    def __init__(self, workspace: Workspace, model: str) -> None:
        self._report: Callable[..., None] = workspace.progress
        self._model = model
        self._set = ""

    def begin(self, name: str) -> None:
        """Set the name of the data set that progress shows from now on."""
        self._set = name

    def __call__(self, done: int, total: int, unit: str) -> None:
        self._report(done, total, unit, f"{self._model} · {self._set}")


@dataclass(frozen=True)
class SetTexts:
    """Distinct texts of a data set: `queries` are its anchors, or all texts if it is symmetric."""

    name: str
    prompt: str
    symmetric: bool
    queries: Sequence[str]
    documents: Sequence[str]

    @classmethod
    def of(cls, dataset: Dataset) -> SetTexts:
        """Return the texts of all rows, in order."""
        queries: dict[str, None] = {}
        documents: dict[str, None] = {}
        other_texts = queries if dataset.symmetric else documents
        for row in range(len(dataset)):
            example = dataset[row]
            queries[example.anchor] = None
            other_texts.update(dict.fromkeys((*example.positives, *example.negatives)))
        sides = tuple(queries), tuple(documents)
        return cls(dataset.info.name, dataset.prompt, dataset.symmetric, *sides)

    def __len__(self) -> int:
        return len(self.queries) + len(self.documents)

    def tokens(self, embedder: TextEmbedder) -> list[TokenisedText]:
        """Return every text's token ids, prompted as in a training: by the data set, else by the model."""
        prompts = embedder.encoder.prompts
        query = self.prompt or prompts.get("query", "")
        document = prompts.get("document", prompts.get("passage", ""))
        return [
            *embedder.tokenise(self.queries, prompt=query),
            *embedder.tokenise(self.documents, prompt=document),
        ]
