"""The `trim_vocabulary` step: a model with the tokens that a corpus needs, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    DataEntry,
    DataError,
    EmbergeError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.model_folder import Checkpoint
from emberge.wording import count_noun

from emberge_smaller.vocabulary.cut_tokenizer import CutTokenizer
from emberge_smaller.vocabulary.kept_tokens import choose_tokens
from emberge_smaller.vocabulary.subword_vocabulary import SubwordVocabulary
from emberge_smaller.vocabulary.trimmed_model import TrimmedModel, list_named_tokens, require_table

if TYPE_CHECKING:
    import numpy as np
    from emberge_data import DistinctTexts
    from numpy.typing import NDArray

LEAST_TOKENS = 500
"""Distinct tokens that a corpus must need: from fewer texts nothing follows about texts to come."""
UNKNOWN_SHARE = 0.1
"""Largest share of unknown tokens in a corpus that the tokenizer knows."""
_COVERED_SHARE = 0.9  # of held-out texts whose tokens are all kept; below it the step warns
_COMPARED_TEXTS = 1000  # whose tokens before and after are compared, at most


@dataclass(frozen=True, kw_only=True)
class TrimVocabulary(Step):
    """Cut a model's vocabulary to the tokens that a corpus needs, with the same embeddings for its texts.

    Multilingual models have 250,000 tokens, most of them of languages that a team never reads, and the
    embedding is most of a small model's weights (Abdaoui et al., 2020, arXiv:2010.05609). The step keeps the
    tokens that occur in `data`, all special and added tokens, bytes, and the single characters of the scripts
    in the data, with digits, punctuation and symbols. It renumbers them in their order, and cuts
    tokenizer.json, embedding, heads and ids in configs with them. WordPiece, Unigram and BPE can be cut;
    other files of the same vocabulary, such as vocab.txt or SentencePiece's, are left out.

    A text whose tokens are all kept has the same tokens and the same bytes of its embedding as before. The
    artifact has the size before and after, and the share of texts of `held_out` whose tokens are all kept.
    Other texts are spelled with shorter tokens.

    Models trimmed by one corpus merge like their originals. An untrimmed base merges into them by tokens
    (`vocabulary: union`).

    Example:
        german:
          trim_vocabulary: {model: ./multilingual, data: ./german.jsonl, held_out: ./queries.jsonl}
    """

    produces = "model"
    loads = ("torch", "transformers")

    model: ModelRef
    """The model, plain or in a SentenceTransformers folder, with a tokenizer.json."""
    data: tuple[DataEntry, ...]
    """Texts that stay as they are: all texts of these data sets."""
    held_out: tuple[DataEntry, ...] = ()
    """Texts that do not choose tokens; the share of them that is covered is in the artifact."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("'data' is empty; name the texts that the vocabulary is for")

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        for entries, option in ((self.data, "data"), (self.held_out, "held_out")):
            yield from check_datasets(context, entries, option).problems
        folder = context.whole_model(self.model)
        if folder is None:
            return
        try:
            checkpoint = Checkpoint(folder)
            vocabulary = SubwordVocabulary.read(checkpoint)
            if checkpoint.has_weights:
                require_table(checkpoint, vocabulary)
        except EmbergeError as error:
            yield context.problem(str(error), "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.model_folder import read_settings

        from emberge_smaller.corpus_tokens import (
            count_covered,
            count_with_prompts,
            read_tokenizer,
            require_equal_tokens,
        )

        model = workspace.model(self.model)
        texts = _read_texts(workspace, self.data)
        held_out = _read_texts(workspace, self.held_out) if self.held_out else ()
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            vocabulary = SubwordVocabulary.read(checkpoint)
            table = require_table(checkpoint, vocabulary)
            tokenizer = read_tokenizer(folder)
            stated: dict[str, str] = read_settings(folder).get("prompts") or {}
            prompts = list(dict.fromkeys(("", *stated.values())))
            counts = count_with_prompts(tokenizer, texts, prompts, vocabulary.size)
            unknown = measure_unknown_share(vocabulary, counts)
            kept = choose_tokens(vocabulary, counts, list_named_tokens(checkpoint, vocabulary))
            trimmed = TrimmedModel(checkpoint, CutTokenizer(vocabulary, kept), table)
            trimmed.write(workspace, model.fingerprint)
        rows = trimmed.cut.rows
        sample = texts[:: 1 + len(texts) // _COMPARED_TEXTS]
        cut_tokenizer = read_tokenizer(workspace.folder)
        require_equal_tokens(tokenizer, cut_tokenizer, trimmed.cut.new_ids, sample)
        details: dict[str, Any] = {
            "vocabulary": {"before": table.shape[0], "after": len(rows)},
            "megabytes": trimmed.megabytes,
            "unknown_share": float(f"{unknown:.3g}"),
            "left_out": list(trimmed.left_out),
            "texts": len(texts),
        }
        if held_out:
            share = count_covered(tokenizer, held_out, prompts, rows) / len(held_out)
            details["held_out"] = {"texts": len(held_out), "share_unchanged": round(share, 4)}
            if share < _COVERED_SHARE:
                workspace.warn(
                    f"{1 - share:.0%} of {count_noun(len(held_out), 'held-out text')} are split otherwise "
                    "than before; give more texts of the users' kind as `data`, and score the model"
                )
        return model.describe_change(self.model, "trimming the vocabulary of", details)


def _read_texts(workspace: Workspace, entries: Sequence[DataEntry]) -> DistinctTexts:
    """Return the distinct texts of data sets: anchors, positives and negatives."""
    from emberge.data import list_texts, load_step_datasets
    from emberge_data import DistinctTexts

    return DistinctTexts(list_texts(load_step_datasets(workspace, entries)), workspace.work)


def measure_unknown_share(vocabulary: SubwordVocabulary, counts: NDArray[np.int64]) -> float:
    """Return the share of unknown tokens in a corpus, of those that are not special.

    `counts` [size] is how often each token occurs.

    Raises:
        DataError: if the share is above a tenth, as in a language that the tokenizer does not know, or the
            corpus needs fewer than 500 tokens.
    """
    import numpy as np

    is_plain = np.ones(len(counts), bool)
    is_plain[[number for number in vocabulary.added if number not in vocabulary.unknown_ids]] = (
        False
    )
    total = int(counts[is_plain].sum())
    share = float(counts[sorted(vocabulary.unknown_ids)].sum()) / total if total else 0.0
    if share > UNKNOWN_SHARE:
        raise DataError(
            f"data: {share:.0%} of its tokens are unknown to the tokenizer, more than {UNKNOWN_SHARE:.0%}, "
            "so the model does not know its language; give texts of a language that it was trained on"
        )
    needed = int((counts[is_plain] > 0).sum())
    if needed < LEAST_TOKENS:
        raise DataError(
            f"data: needs {count_noun(needed, 'token')} of {len(vocabulary.ids):,}, and a vocabulary is cut "
            f"to at least {LEAST_TOKENS}; give more texts of the users' kind"
        )
    return share
