"""Choice of the tokens to keep, so that texts of kept tokens are cut into tokens as before.

Let a text be covered if all of its tokens are kept. Then the cut tokenizer gives the same tokens, because:

* WordPiece takes at each place the longest token that fits. A longer one that does not exist before does not
  exist after, and the token taken is kept.
* Unigram takes the path of the highest sum of scores, of equal ones the path whose last piece begins first.
  All pieces of this path are kept. Every other path existed before, or has an unknown piece in place of a
  dropped one. An unknown piece scores below the lowest score in the vocabulary, so it is worth less than the
  dropped piece if the piece with the lowest score is kept, as it always is. Sums are added from left to
  right, and rounding never turns a smaller sum into a larger one.
* BPE merges the pair of the lowest rank again and again. No merge crosses the end of a token of the result,
  so the merges inside it are those that build the token alone. If they are kept, in their order, each choice
  falls on the same pair as before.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from emberge_smaller.vocabulary.subword_vocabulary import SubwordVocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEAST_SHARE = 1e-3  # of the letters in the corpus that a script must have


def choose_tokens(
    vocabulary: SubwordVocabulary, counts: NDArray[np.int64], named: Iterable[int]
) -> list[int]:
    """Return the ids to keep, in ascending order.

    `counts` [size] is how often each token occurs in the corpus. `named` are ids that files of the model
    name. Added tokens, the unknown token and bytes are always kept, and so are the single characters of the
    corpus's scripts, digits, punctuation and symbols.
    """
    kept = {int(number) for number in counts.nonzero()[0]} | set(named) | set(vocabulary.added)
    if vocabulary.unknown_token is not None:
        kept.add(vocabulary.unknown_token)
    kept |= set(_list_characters(vocabulary, counts))
    if vocabulary.algorithm == "Unigram":
        scores = [float(score) for _, score in vocabulary.scores]
        kept.add(scores.index(min(scores)))
    if vocabulary.algorithm == "BPE":
        built = [vocabulary.base[number] for number in kept if number in vocabulary.base]
        kept |= {vocabulary.ids[token] for token in vocabulary.merge_table.list_parts(built)}
    return sorted(kept & vocabulary.texts.keys())


def _list_characters(vocabulary: SubwordVocabulary, counts: NDArray[np.int64]) -> Iterator[int]:
    """Yield the ids of bytes, and of the single characters that are of no script or of the corpus's."""
    scripts = _find_scripts(vocabulary, counts)
    for number, character in vocabulary.list_characters():
        if character is None or find_script(character) in {None, *scripts}:
            yield number


def _find_scripts(vocabulary: SubwordVocabulary, counts: NDArray[np.int64]) -> frozenset[str]:
    """Return the scripts with at least one in a thousand letters of the corpus."""
    letters: Counter[str] = Counter()
    for number in counts.nonzero()[0]:
        if int(number) in vocabulary.base and int(number) not in vocabulary.added:
            for character in vocabulary.base[int(number)]:
                letters[find_script(character) or ""] += int(counts[number])
    del letters[""]
    least = _LEAST_SHARE * letters.total()
    return frozenset(script for script, count in letters.items() if count >= least)


def find_script(character: str) -> str | None:
    """Return the script of a letter, as its Unicode name begins (LATIN, CYRILLIC, CJK); None for others.

    Marks that combine with letters of any script have none.
    """
    if unicodedata.category(character)[0] not in "LM":
        return None
    script = unicodedata.name(character, "").partition(" ")[0]
    return None if script in {"", "COMBINING"} else script
