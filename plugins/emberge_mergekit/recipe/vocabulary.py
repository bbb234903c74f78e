"""Step that makes one vocabulary for several models with mergekit's own tokenizer code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emberge import (
    Artifact,
    CheckpointError,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MergekitVocabulary(Step):
    """Make one vocabulary for several models, and embeddings for it, by mergekit's own tokenizer code.

    A merge of the same models names this step as its `vocabulary`. If a model lacks a token, it gets the
    embedding of the base or of the only model that has the token, otherwise the mean over the models that
    have it. `dtype` is the type of the embeddings, by default the widest type of the models.

    Example:
        vocabulary:
          mergekit_vocabulary: {models: [./a, ./b], base: ./base, source: union}
    """

    produces = "file"

    models: tuple[ModelRef, ...]
    """Every model of the merge, its base too."""
    base: ModelRef | None = None
    """The model whose embedding is preferred if another model lacks a token."""
    source: Literal["union", "base"] | ModelRef = "union"
    """The tokens: those of all models, of the base, or of one model."""
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("'models' is empty")

    def identity(self) -> str:
        return f"mergekit {version('mergekit')}, tokenizers {version('tokenizers')}"

    def check(self, context: Preflight) -> Iterable[Problem]:
        listed_texts = {reference.text for reference in self.models}
        for option, reference in self._list_references():
            if reference.text not in listed_texts:
                yield context.problem(f"'{reference.text}' is not among the models", option)
        for number, reference in enumerate(self.models):
            folder = context.model(reference)
            if context.adapter(reference) is not None:
                yield context.problem(_refuse_adapter(reference.text), f"models.{number}")
            elif folder is not None and not _has_tokenizer(folder):
                yield context.problem(f"'{reference.text}' has no tokenizer", f"models.{number}")

    def _list_references(self) -> Iterable[tuple[str, ModelRef]]:
        if self.base is not None:
            yield "base", self.base
        if isinstance(self.source, ModelRef):
            yield "source", self.source

    def run(self, workspace: Workspace) -> Artifact:
        from safetensors.torch import save_file

        from emberge_mergekit.recipe.embeddings import Vocabulary, vocabulary_tensors

        models = {reference.text: workspace.model(reference) for reference in self.models}
        for text, model in models.items():
            if model.adapter is not None:
                raise CheckpointError(_refuse_adapter(text))
        source = self.source.text if isinstance(self.source, ModelRef) else self.source
        base = self.base.text if self.base is not None else None
        vocabulary = Vocabulary.build({t: m.folder for t, m in models.items()}, source, base)
        tensors_by_model: dict[str, dict[str, Tensor]] = {text: {} for text in models}
        for name, tensors in vocabulary_tensors(models, self.dtype):
            for text, tensor in vocabulary.aligned(name, tensors).items():
                tensors_by_model[text][name] = tensor.contiguous()
            workspace.progress(len(tensors_by_model), len(models), "models", name)
        files = {m.fingerprint: f"{i}.safetensors" for i, m in enumerate(models.values())}
        for file, tensors in zip(files.values(), tensors_by_model.values(), strict=True):
            save_file(tensors, workspace.folder / file)
        vocabulary.save_tokenizer(workspace.folder)
        return _finish_folder(workspace.folder, vocabulary.size, files, models)


def _finish_folder(
    folder: Path, size: int, files: Mapping[str, str], models: Mapping[str, Model]
) -> Artifact:
    """Write the file that lists the vocabulary's size and files, and return the folder as an artifact."""
    from emberge.merging import SuppliedVocabulary

    text = json.dumps({"size": size, "models": files}, indent=2)
    (folder / SuppliedVocabulary.FILE).write_text(f"{text}\n", encoding="utf-8")
    fingerprints = {text: model.fingerprint for text, model in models.items()}
    return Artifact(
        kind="file", parents=tuple(models), details={"tokens": size, "models": fingerprints}
    )


def _refuse_adapter(text: str) -> str:
    return (
        f"'{text}' is an adapter on its base, whose embeddings stand in no file; make one model of them "
        "by a merge step of its own, with the strategy 'passthrough'"
    )


def _has_tokenizer(model_folder: Path) -> bool:
    from emberge.model_folder import Checkpoint

    folders = {model_folder, Checkpoint(model_folder).trunk}
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt")
    return any((folder / name).is_file() for folder in folders for name in names)
