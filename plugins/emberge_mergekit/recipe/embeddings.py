"""Building of tokenizers and reordering of embeddings by mergekit's own code (`mergekit.tokenizer`)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, Model
from emberge.architectures import find_config_class
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader, TensorSpec

from emberge_mergekit.library import without_chatter

if TYPE_CHECKING:
    from torch import Tensor


def vocabulary_tensors(
    models: Mapping[str, Model], dtype: str | None
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield (canonical name, whole tensor of each model that has it) for every tensor whose rows are tokens.

    For a model with a tied head the embedding is yielded as the head if another model has a separate head.
    """
    from emberge.tensor_names import is_vocabulary

    tensor_names = {text: Checkpoint(model.folder).names for text, model in models.items()}
    names = dict.fromkeys(
        n for model_names in tensor_names.values() for n in model_names.specs if is_vocabulary(n)
    )
    with TensorReader() as reader:
        for name in names:
            specs = {
                t: model_names.specs.get(name) or model_names.stands_for(name)
                for t, model_names in tensor_names.items()
            }
            yield name, {t: _read(reader, s, dtype) for t, s in specs.items() if s is not None}


def _read(reader: TensorReader, spec: TensorSpec, dtype: str | None) -> Tensor:
    import torch

    tensor = torch.empty(spec.shape, dtype=getattr(torch, dtype or spec.dtype))
    reader.read(spec, 0, tensor.view(-1))
    return tensor


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizer of the result, and the map from each model's rows to its rows, by mergekit's `names`."""

    names: Mapping[str, Any]
    base: Any
    task: Any
    info: Any

    @classmethod
    def build(cls, folders: Mapping[str, Path], source: str, base: str | None) -> Vocabulary:
        """Build the tokenizer from the models' folders, and return the vocabulary.

        `source` is "union", "base" or one of the models, `base` a model or None.

        Raises:
            CheckpointError: if mergekit cannot read or unite the tokenizers.
        """
        with without_chatter():
            from mergekit.common import ModelPath, ModelReference
            from mergekit.tokenizer.build import BuildTokenizer

            names = {
                text: ModelReference(model=ModelPath(path=str(trunk)))
                for text, trunk in _find_trunks(folders).items()
            }
            task = BuildTokenizer(
                base_model=names[base] if base is not None else None,
                referenced_models=tuple(names.values()),
                tokenizer_source=names.get(source, source),
                add_tokens=(),
                trust_remote_code=False,
            )
            with _explained(), contextlib.redirect_stderr(io.StringIO()):  # its progress bars
                info = task.execute()
        return cls(names, task.base_model, task, info)

    @property
    def size(self) -> int:
        """Number of embeddings."""
        return len(self.info.tokenizer.get_vocab())

    def aligned(self, name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return each model's tensor of one name, with its rows in the order of the new vocabulary.

        Raises:
            CheckpointError: if a token has an embedding in no model.
        """
        with without_chatter():
            from mergekit.architecture import WeightInfo
            from mergekit.common import ImmutableMap
            from mergekit.io.tasks import GatherTensors
            from mergekit.tokenizer import PermutedVocabulary

            by_name = {self.names[text]: tensor for text, tensor in tensors.items()}
            weight = WeightInfo(name=name, vocabulary_axis=0)
            task = PermutedVocabulary(
                gather_tensors=GatherTensors(
                    weight_info=ImmutableMap(data=dict.fromkeys(by_name, weight))
                ),
                tokenizer_task=self.task,
                tokens=ImmutableMap(data={}),
                pad_to_multiple_of=None,
                base_model=self.base,
                vocabulary_axis=0,
            )
            with _explained():
                aligned_by_name = task.execute(tokenizer_info=self.info, tensors=by_name)
        return {text: aligned_by_name[self.names[text]] for text in tensors}

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer into the folder."""
        self.info.tokenizer.save_pretrained(folder)


def _find_trunks(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return the folder of each model's transformer, after registering its config class."""
    checkpoints = {text: Checkpoint(folder) for text, folder in folders.items()}
    for checkpoint in checkpoints.values():
        find_config_class(checkpoint.config.get("model_type"))
    return {text: checkpoint.trunk for text, checkpoint in checkpoints.items()}


class _explained(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a phrase
    """Turn mergekit's error on tokenizers that it cannot unite into a CheckpointError."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError):
            raise CheckpointError(
                f"the vocabularies cannot be united: token id {error} has no row in a model's embeddings; "
                "its tokenizer holds more tokens than the model"
            ) from error
        if isinstance(error, AssertionError | RuntimeError | ValueError | NotImplementedError):
            raise CheckpointError(f"the vocabularies cannot be united: {error}") from error
        if isinstance(error, OSError):
            raise CheckpointError(f"a tokenizer cannot be read: {error}") from error
