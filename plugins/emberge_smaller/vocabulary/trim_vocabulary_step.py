"""The `trim_vocabulary` step: a model with the tokens that a corpus needs, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    DataError,
    EmbergeError,
    Expected,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
    component,
)
from emberge.model_folder import Checkpoint
from emberge.wording import count_noun

from emberge_smaller.vocabulary.cut_tokenizer import CutTokenizer
from emberge_smaller.vocabulary.kept_tokens import choose_tokens
from emberge_smaller.vocabulary.subword_vocabulary import SubwordVocabulary
from emberge_smaller.vocabulary.trimmed_model import TrimmedModel, list_named_tokens, require_table

if TYPE_CHECKING:
    import numpy as np
    from emberge.contracts import Encoder
    from emberge_data import DistinctTexts
    from numpy.typing import NDArray

    from emberge_smaller.vocabulary.corpus_tokens import CorpusTokens

LEAST_TOKENS = 500
"""Distinct tokens that a corpus must need: from fewer texts nothing follows about texts to come."""
MOST_UNKNOWN = 0.1
"""Largest share of unknown tokens in a corpus that the tokenizer knows."""
_COMPARED_TEXTS = 256


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
    step proves it: for the tokens on all texts of `data` and for the embeddings on a sample of them. The
    artifact has the size before and after, and the share of texts of `held_out` that are covered so. Other
    texts are spelled with shorter tokens.

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
    backbone: Backbone = component("text_encoder")
    """Backbone that reads the texts before and after, for the proof."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("'data' is empty; name the texts that the vocabulary is for")

    def check(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        context.expect(Expected(Artifact(kind="model", parents=(self.model.text,))))
        for entries, option in ((self.data, "data"), (self.held_out, "held_out")):
            yield from check_datasets(context, entries, option).problems
        folder = context.whole_model(self.model)
        if folder is None:
            return
        for message in self.backbone.describe(folder).problems:
            yield context.problem(message, "backbone")
        try:
            checkpoint = Checkpoint(folder)
            vocabulary = SubwordVocabulary.read(checkpoint)
            if checkpoint.has_weights:
                require_table(checkpoint, vocabulary)
        except EmbergeError as error:
            yield context.problem(str(error), "model")
            return
        context.note("trimming", [f"{vocabulary.kind} of {len(vocabulary.ids):,} tokens"])

    def run(self, workspace: Workspace) -> Artifact:

        model = workspace.model(self.model)
        texts = _read_corpus(workspace, self.data, "data")
        held_out = _read_corpus(workspace, self.held_out, "held_out") if self.held_out else ()
        with workspace.whole_model(model) as folder:
            checkpoint = Checkpoint(folder)
            vocabulary = SubwordVocabulary.read(checkpoint)
            table = require_table(checkpoint, vocabulary)
            before = self._read_whole(checkpoint, vocabulary, texts, held_out, workspace)
            counts = before.tokens.count(vocabulary.size)
            unknown = require_known(vocabulary, counts)
            named = list_named_tokens(checkpoint, vocabulary)
            kept = choose_tokens(vocabulary, counts, named)
            trimmed = TrimmedModel(checkpoint, CutTokenizer(vocabulary, kept), table)
            trimmed.write(workspace, model.fingerprint)
            proof = self._prove(trimmed, before, workspace)
        (rows, left_rows), (size, left_size) = trimmed.tokens, trimmed.megabytes
        return Artifact(
            kind="model",
            size=model.size,
            parents=(self.model.text,),
            details={
                "made_by": "trimming the vocabulary of",
                **model.as_base(self.model),
                "vocabulary": {"before": rows, "after": left_rows},
                "megabytes": {"before": round(size, 3), "after": round(left_size, 3)},
                "unknown_share": unknown,
                "left_out": list(trimmed.left_out),
                **proof,
            },
        )

    def _read_whole(
        self,
        checkpoint: Checkpoint,
        vocabulary: SubwordVocabulary,
        texts: Sequence[str],
        held_out: Sequence[str],
        workspace: Workspace,
    ) -> _Reading:
        """Return the whole model's reading: all texts' tokens, and the embeddings of a sample."""
        from emberge_smaller.vocabulary.corpus_tokens import CorpusTokens

        encoder = self._open(checkpoint, workspace)
        tokens = CorpusTokens.write(encoder, texts, workspace.work / "tokens")
        others = CorpusTokens.write(encoder, held_out, workspace.work / "held_out")
        count = min(len(texts), _COMPARED_TEXTS)
        sample = [texts[place * len(texts) // count] for place in range(count)]
        return _Reading(tokens, others, sample, _embed(encoder, sample))

    def _open(self, checkpoint: Checkpoint, workspace: Workspace) -> Encoder:
        return self.backbone.load(
            checkpoint.folder, device=workspace.machine.device, dtype="float32"
        )

    def _prove(
        self, trimmed: TrimmedModel, before: _Reading, workspace: Workspace
    ) -> dict[str, Any]:
        """Return the numbers of texts, after the result read all covered ones as the whole model did.

        Raises:
            CheckpointError: if it reads a covered text in another way, or embeds one otherwise.
        """
        import numpy as np

        encoder = self._open(Checkpoint(workspace.folder), workspace)
        size = trimmed.cut.vocabulary.size
        new_ids = np.full(size, -1, np.int64)
        new_ids[np.asarray(trimmed.cut.rows)] = np.arange(len(trimmed.cut.rows))
        count = len(before.tokens.texts)
        before.tokens.require_equal(encoder, new_ids, np.ones(count, bool))
        proof: dict[str, Any] = {"corpus": {"texts": count}}
        covered = before.held_out.mark_covered(trimmed.cut.rows, size)
        before.held_out.require_equal(encoder, new_ids, covered)
        if len(covered):
            proof["held_out"] = {"texts": len(covered), "covered": float(covered.mean())}
        embeddings = _embed(encoder, before.sample)
        differing = int(
            (embeddings.view(np.uint32) != before.embeddings.view(np.uint32)).any(1).sum()
        )
        if differing:
            raise CheckpointError(
                f"{count_noun(differing, 'text')} of {len(before.sample):,} have other embeddings after the "
                "cut, though their tokens are the same; report this model"
            )
        return {**proof, "equal_embeddings": len(before.sample)}


@dataclass(frozen=True, eq=False)
class _Reading:
    """The tokens that a model reads in the corpus and in held-out texts, and a sample's embeddings."""

    tokens: CorpusTokens
    held_out: CorpusTokens
    sample: Sequence[str]
    embeddings: NDArray[np.float32]


def _read_corpus(workspace: Workspace, entries: Sequence[DataEntry], option: str) -> DistinctTexts:
    """Return the distinct texts of data sets: anchors, positives and negatives.

    Raises:
        DataError: if there are none, or all are blank.
    """
    from emberge.data import list_texts, step_datasets
    from emberge_data import DistinctTexts

    texts = DistinctTexts(list_texts(step_datasets(workspace, entries)), workspace.work)
    if not any(texts[i].strip() for i in range(len(texts))):
        raise DataError(f"{option}: has no text that is not empty; give texts of the users' kind")
    return texts


def _embed(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    from emberge.encoding import TextEmbedder

    return TextEmbedder(encoder).embed(texts)


def require_known(vocabulary: SubwordVocabulary, counts: NDArray[np.int64]) -> float:
    """Return the share of unknown tokens in a corpus, of those that are not special.

    `counts` [size] is how often each token occurs.

    Raises:
        DataError: if the share is above a tenth, as in a language that the tokenizer does not know, or the
            corpus needs fewer than 500 tokens.
    """
    import numpy as np

    is_plain = np.ones(len(counts), bool)
    is_plain[[number for number in vocabulary.added if number not in vocabulary.unknown]] = False
    total = int(counts[is_plain].sum())
    share = float(counts[sorted(vocabulary.unknown)].sum()) / total if total else 0.0
    if share > MOST_UNKNOWN:
        raise DataError(
            f"data: {share:.0%} of its tokens are unknown to the tokenizer, more than {MOST_UNKNOWN:.0%}, so "
            "the model does not know its language; give texts of a language that it was trained on"
        )
    needed = int((counts[is_plain] > 0).sum())
    if needed < LEAST_TOKENS:
        raise DataError(
            f"data: needs {count_noun(needed, 'token')} of {len(vocabulary.ids):,}, and a vocabulary is cut "
            f"to at least {LEAST_TOKENS}; give more texts of the users' kind"
        )
    return share
