"""A model whose vocabulary is cut: embedding and head rows, configs and tokenizer files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import CheckpointError, Workspace
from emberge.model_folder import Checkpoint, TrunkConfig, read_object
from emberge.tensor_files import TensorSpec
from emberge.wording import count_noun, join_some

from emberge_smaller.vocabulary.cut_tokenizer import (
    CutTokenizer,
    list_named_ids,
    list_named_texts,
    list_processor_ids,
    renumber_ids,
)
from emberge_smaller.vocabulary.subword_vocabulary import SubwordVocabulary

# Files that name tokens by id, and files that name them by text.
_CONFIGS = ("config.json", "generation_config.json", "processor_config.json")
_NAMING_FILES = (
    *("tokenizer_config.json", "special_tokens_map.json"),
    *("config_sentence_transformers.json", "artifact.metadata"),
)
_POSITIONS = "position_embeddings.weight"


def list_named_tokens(checkpoint: Checkpoint, vocabulary: SubwordVocabulary) -> set[int]:
    """Return the ids of tokens that files of a model name, by id or by text.

    If the model has a table of positions, all tokens up to the padding token are among them: classes such as
    RoBERTa count positions from the padding token's id, which must stay.

    Raises:
        CheckpointError: if the tokenizer puts ids around a text that no token has.
    """
    named = list_processor_ids(vocabulary.content)
    unknown_ids = sorted(named - vocabulary.texts.keys())
    if unknown_ids:
        raise CheckpointError(
            f"{vocabulary.path}: its post_processor has the id {join_some(map(str, unknown_ids))}, which no "
            "token has; get the tokenizer again"
        )
    padding = vocabulary.content.get("padding")
    if isinstance(padding, Mapping) and isinstance(padding.get("pad_id"), int):
        named.add(padding["pad_id"])
    for path in _find_files(checkpoint, _CONFIGS):
        named |= list_named_ids(read_object(path))
    for path in _find_files(checkpoint, _NAMING_FILES):
        texts = list_named_texts(read_object(path))
        named |= {vocabulary.ids[text] for text in texts if text in vocabulary.ids}
    pad = TrunkConfig(checkpoint.config).stated.get("pad_token_id")
    has_positions = any(name.endswith(_POSITIONS) for name in checkpoint.tensor_names.specs)
    if has_positions and isinstance(pad, int):
        named |= set(range(min(pad + 1, vocabulary.size)))
    return named


def _find_files(checkpoint: Checkpoint, names: Sequence[str]) -> Iterator[Path]:
    for folder in dict.fromkeys((checkpoint.folder, checkpoint.trunk, checkpoint.tokenizer_folder)):
        yield from (folder / name for name in names if (folder / name).is_file())


def require_table(checkpoint: Checkpoint, vocabulary: SubwordVocabulary) -> TensorSpec:
    """Return the input embedding of a model, with a row for each token.

    Raises:
        CheckpointError: if the model has no single input embedding, or one with fewer rows.
    """
    table = checkpoint.tensor_names.find_embedding()
    if table is None or len(table.shape) != 2:
        raise CheckpointError(
            f"{checkpoint.folder}: has no single embedding of tokens, whose rows could be cut; take a "
            "transformer"
        )
    if vocabulary.size > table.shape[0]:
        raise CheckpointError(
            f"{checkpoint.folder}: its tokenizer has ids up to {vocabulary.size - 1:,}, and its embedding "
            f"has {count_noun(table.shape[0], 'row')}; get the tokenizer of this model"
        )
    return table


@dataclass(frozen=True, eq=False)
class TrimmedModel:
    """A checkpoint with the vocabulary of a cut tokenizer; `table` is its whole input embedding."""

    checkpoint: Checkpoint
    cut: CutTokenizer
    table: TensorSpec

    @cached_property
    def tensors(self) -> Sequence[TensorSpec]:
        """All tensors, those of the vocabulary with the kept tokens' rows alone."""
        from emberge.merging import move_rows

        names = self.checkpoint.tensor_names
        moved = move_rows(names, self.cut.rows)
        return [spec.with_name(names.name_in_result(spec)) for spec in moved.specs.values()]

    @property
    def megabytes(self) -> dict[str, float]:
        """The size of the weights `before` and `after`, in units of 1,000,000 bytes."""
        before = sum(spec.nbytes for spec in self.checkpoint.specs.values())
        after = sum(spec.nbytes for spec in self.tensors)
        return {"before": round(before / 1e6, 3), "after": round(after / 1e6, 3)}

    @cached_property
    def files(self) -> Mapping[str, Mapping[str, Any] | str]:
        """The content of each file that changes, by its path in the folder."""
        checkpoint, folder = self.checkpoint, self.checkpoint.folder
        size = (self._stated_size, len(self.cut.rows))
        files: dict[str, Mapping[str, Any] | str] = {
            path.relative_to(folder).as_posix(): renumber_ids(
                read_object(path), self.cut.new_ids.get, size
            )
            for path in _find_files(checkpoint, _CONFIGS)
        }
        place = checkpoint.tokenizer_folder.relative_to(folder)
        return files | {
            (place / name).as_posix(): content for name, content in self.cut.build_files().items()
        }

    @property
    def _stated_size(self) -> int:
        """The vocabulary's size as the config states it, which some classes round up."""
        stated = TrunkConfig(self.checkpoint.config).stated.get("vocab_size")
        return stated if isinstance(stated, int) else self.table.shape[0]

    @cached_property
    def left_out(self) -> Sequence[str]:
        """The files, by path in the folder, that have the old vocabulary in another format."""
        folder = self.checkpoint.folder
        places = list(dict.fromkeys((folder, self.checkpoint.trunk)))
        return [path.relative_to(folder).as_posix() for path in self.cut.find_stale(places)]

    def write(self, workspace: Workspace, content: str) -> None:
        """Write the model as the step's result; `content` is the fingerprint of the whole model.

        Raises:
            CheckpointError: if the weights cannot be read or written.
        """
        from emberge.merging import build_result

        def remove_stale(out_folder: Path) -> None:
            for name in self.left_out:
                (out_folder / name).unlink(missing_ok=True)

        build_result(
            workspace,
            self.tensors,
            template=self.checkpoint,
            key=[content, list(self.cut.rows)],
            files=self.files,
            complete=remove_stale,
        )
        if self.left_out:
            workspace.warn(
                f"{join_some(self.left_out)}: left out, as the vocabulary is cut in tokenizer.json, which "
                "transformers and sentence-transformers read"
            )
