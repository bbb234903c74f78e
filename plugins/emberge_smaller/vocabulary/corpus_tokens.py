"""The tokens of a corpus as an encoder reads it: counted, kept on disk, compared with another encoder's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from emberge import CheckpointError
from emberge.encoding import TEXTS_AT_ONCE, Ragged, RaggedWriter
from numpy.typing import NDArray

if TYPE_CHECKING:
    from emberge.contracts import Encoder

# Tokens of a text that count, also those beyond the model's length; a longer text's others do not.
_ALL_TOKENS = 1_000_000


@dataclass(frozen=True, eq=False)
class CorpusTokens:
    """The token ids of every text of a corpus, by the prompt before it; "" is none."""

    texts: Sequence[str]
    by_prompt: Mapping[str, Ragged]

    @classmethod
    def write(cls, encoder: Encoder, texts: Sequence[str], folder: Path) -> CorpusTokens:
        """Tokenise all texts alone and after each of the model's prompts, into files in `folder`."""
        by_prompt: dict[str, Ragged] = {}
        for number, prompt in enumerate(dict.fromkeys(("", *encoder.prompts.values()))):
            place = folder / str(number)
            place.mkdir(parents=True, exist_ok=True)
            with RaggedWriter(place) as writer:
                for start in range(0, len(texts), TEXTS_AT_ONCE):
                    part = texts[start : start + TEXTS_AT_ONCE]
                    writer.add(encoder.tokenise(part, prompt=prompt, max_length=_ALL_TOKENS))
            by_prompt[prompt] = Ragged.load(place)
        return cls(texts, by_prompt)

    def count(self, size: int) -> NDArray[np.int64]:
        """Return how often each token occurs, int64 [size]; ids are below `size`."""
        counts = np.zeros(size, np.int64)
        for tokens in self.by_prompt.values():
            for _, ids in _batches(tokens):
                counts += np.bincount(ids, minlength=size)
        return counts

    def mark_covered(self, rows: Sequence[int], size: int) -> NDArray[np.bool_]:
        """Return a mask of the texts [n] whose tokens are all among `rows`, with every prompt."""
        is_kept = np.zeros(size, bool)
        is_kept[np.asarray(rows)] = True
        covered = np.ones(len(self.texts), bool)
        for tokens in self.by_prompt.values():
            for start, ids in _batches(tokens):
                offsets = tokens.offsets[start : start + TEXTS_AT_ONCE + 1]
                dropped = np.concatenate([[0], np.cumsum(~is_kept[ids])])
                covered[start : start + len(offsets) - 1] &= (
                    np.diff(dropped[offsets - offsets[0]]) == 0
                )
        return covered

    def require_equal(
        self, encoder: Encoder, new_ids: NDArray[np.int64], covered: NDArray[np.bool_]
    ) -> None:
        """Require that another encoder gives the covered texts the same tokens under their new ids.

        `new_ids` has the new id of each old one.

        Raises:
            CheckpointError: if it does not; names the first such text.
        """
        for prompt, tokens in self.by_prompt.items():
            for start, _ in _batches(tokens):
                stop = min(start + TEXTS_AT_ONCE, len(tokens))
                part = [i for i in range(start, stop) if covered[i]]
                cut = encoder.tokenise(
                    [self.texts[i] for i in part], prompt=prompt, max_length=_ALL_TOKENS
                )
                for place, text in zip(part, cut, strict=True):
                    if not np.array_equal(new_ids[np.asarray(tokens[place].ids)], text.ids):
                        raise CheckpointError(
                            f"the cut tokenizer reads {self.texts[place][:200]!r} in another way, so its "
                            "kind cannot be cut; report this tokenizer"
                        )


def _batches(tokens: Ragged) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield the number of the first of some texts, and the ids of all of them one after the other."""
    for start in range(0, len(tokens), TEXTS_AT_ONCE):
        stop = min(start + TEXTS_AT_ONCE, len(tokens))
        yield start, tokens.ids[tokens.offsets[start] : tokens.offsets[stop]]
