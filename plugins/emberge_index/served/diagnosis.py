"""The causes by which a server's vectors differ from a model's: each is tried, alone and two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from emberge_index.served.served_form import ServedForm, measure_form
from emberge_index.served.settings import KnownVectors, ServedSetting, UntriedError
from emberge_index.space import SAME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CauseName = Literal[
    "prompt_missing",
    "prompt_doubled",
    "prompt_of_other_side",
    "pooling",
    "normalisation",
    "truncation_length",
    "truncation_side",
    "case",
    "tokenizer",
    "prefix",
    "precision",
    "model",
]
# Limits of tokens that servers have, tried from the most usual.
_LENGTHS = (512, 256, 128, 384, 1024, 2048, 4096, 8192, 64, 32)
# Of the settings that differ in one thing, so many are combined with all others.
_FIRST = 4


@dataclass(frozen=True)
class Cause:
    """A cause of different vectors: its name, and the words that say what to do."""

    name: CauseName
    words: str


@dataclass(frozen=True)
class Diagnosis:
    """Outcome of a comparison of vectors with a model's.

    `distance` is the largest of a text's two vectors, each scaled to length one, under the model's own
    setting; `explained` is that under the setting with the `causes`. Without causes the vectors are the same,
    or, if `is_same` is False, differ by something that was not tried.
    """

    is_same: bool
    distance: float
    explained: float
    causes: tuple[Cause, ...]
    form: ServedForm


@dataclass(frozen=True)
class _Variation:
    """A change of the setting in one of its parts, and the cause that it would be."""

    part: str
    cause: Cause
    change: Mapping[str, Any]

    def apply(self, setting: ServedSetting) -> ServedSetting:
        return replace(setting, **self.change)


@dataclass(frozen=True)
class _Try:
    """A setting that was tried, with the changes that lead to it, and the distances under it."""

    setting: ServedSetting
    variations: tuple[_Variation, ...]
    form: ServedForm
    worst: float
    mean: float

    @property
    def is_same(self) -> bool:
        return self.worst <= SAME

    @property
    def order(self) -> tuple[bool, int, float]:
        """Place among tries: those that explain the vectors first, by the number of changes."""
        return not self.is_same, len(self.variations) if self.is_same else 0, round(self.mean, 6)


@dataclass(frozen=True)
class SentTexts:
    """Texts that a server was sent: each with `sent` before it, where the model has `expected`.

    `other` is the model's prompt for the other side of a search.
    """

    texts: Sequence[str]
    sent: str
    expected: str
    other: str


def diagnose(
    served: NDArray[np.float64],
    asked: SentTexts,
    own: KnownVectors,
    *,
    candidates: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Return whether a server's vectors [n, k] are the model's, and by which causes they differ.

    `candidates` are the names of the models after the first one of `own`.
    """

    def attempt(setting: ServedSetting, variations: tuple[_Variation, ...]) -> _Try | None:
        try:
            vectors = own.embed(asked.texts, setting)
        except UntriedError:
            return None
        form, distances = measure_form(served, vectors)
        return _Try(setting, variations, form, float(distances.max()), float(distances.mean()))

    base = attempt(ServedSetting(asked.expected), ())
    assert base is not None
    found = base
    if not base.is_same:
        found = _search(base, attempt, _list_variations(asked, own, candidates), progress)
    causes = [variation.cause for variation in found.variations] if found.is_same else []
    own_size = own.embed(asked.texts[:1], ServedSetting(asked.expected)).shape[1]
    causes += list_causes_of_form(found.form, own_size) if found.is_same else ()
    is_same = found.is_same and not causes
    return Diagnosis(is_same, base.worst, found.worst, tuple(causes), found.form)


def _search(
    base: _Try,
    attempt: Callable[[ServedSetting, tuple[_Variation, ...]], _Try | None],
    variations: Sequence[_Variation],
    progress: Callable[[str], None] | None,
) -> _Try:
    """Return the best setting with one change, or with two if none explains the vectors."""
    singles = [base]
    for variation in variations:
        if progress is not None:
            progress(variation.cause.name)
        tried = attempt(variation.apply(base.setting), (variation,))
        singles += [] if tried is None else [tried]
    singles.sort(key=lambda one: one.order)
    if singles[0].is_same:
        return singles[0]
    pairs, settings = [singles[0]], {one.setting for one in singles}
    for first in [one for one in singles if one.variations][:_FIRST]:
        for variation in variations:
            setting = variation.apply(first.setting)
            if variation.part == first.variations[0].part or setting in settings:
                continue
            settings.add(setting)
            if progress is not None:
                progress(f"{first.variations[0].cause.name} and {variation.cause.name}")
            tried = attempt(setting, (*first.variations, variation))
            pairs += [] if tried is None else [tried]
    return min(pairs, key=lambda one: one.order)


def _list_variations(
    asked: SentTexts, own: KnownVectors, candidates: Sequence[str]
) -> list[_Variation]:
    return [
        *_vary_prompt(asked),
        *_vary_pooling(own),
        *_vary_truncation(asked, own),
        *_vary_case(own),
        *_vary_model(candidates),
    ]


def _vary_prompt(asked: SentTexts) -> Iterator[_Variation]:
    def vary(name: CauseName, prompt: str, words: str) -> _Variation:
        return _Variation("prompt", Cause(name, words), {"prompt": prompt})

    if asked.expected and not asked.sent:
        yield vary(
            "prompt_missing",
            "",
            f"texts were embedded without the prompt {asked.expected!r}; put it before each text, or let the "
            "server do so",
        )
    if asked.expected and asked.sent:
        yield vary(
            "prompt_doubled",
            asked.expected * 2,
            f"texts were embedded with the prompt {asked.expected!r} twice, by the client and by the server; "
            "leave it out on one side",
        )
    if asked.other and asked.other != asked.expected:
        yield vary(
            "prompt_of_other_side",
            asked.other + asked.sent,
            f"texts were embedded with the prompt of the other side, {asked.other!r}; take "
            f"{asked.expected!r}",
        )


def _vary_pooling(own: KnownVectors) -> Iterator[_Variation]:
    for pooling in own.list_poolings():
        words = f"the pooling was {pooling}, which is not the model's; set the model's own"
        yield _Variation("pooling", Cause("pooling", words), {"pooling": pooling})


def _vary_truncation(asked: SentTexts, own: KnownVectors) -> Iterator[_Variation]:
    limit, longest = own.limit, max(own.count_tokens(asked.texts))
    for length in _LENGTHS:
        if length == limit or (length >= longest and limit is None):
            continue
        words = (
            f"{length:,} tokens of a text were read, and the model reads "
            f"{'all of them' if limit is None else f'{limit:,}'}; set the longest text"
        )
        yield _Variation("length", Cause("truncation_length", words), {"length": length})
    words = (
        "long texts lost their beginning, and the model cuts their end; set truncation_side: right"
    )
    yield _Variation("side", Cause("truncation_side", words), {"cuts_left": True})


def _vary_case(own: KnownVectors) -> Iterator[_Variation]:
    if own.makes_lower_case:
        words = "upper case was kept, and the model's tokenizer makes texts lower case"
    else:
        words = "texts were made lower case, and the model's tokenizer does not do so"
    case = "kept" if own.makes_lower_case else "lower"
    yield _Variation("case", Cause("case", f"{words}; take the model's tokenizer"), {"case": case})


def _vary_model(candidates: Sequence[str]) -> Iterator[_Variation]:
    for number, name in enumerate(candidates, 1):
        words = f"the vectors are those of {name}; embed texts by the right model"
        yield _Variation("model", Cause("model", words), {"model": number})
        words = f"the tokenizer was that of {name}; take the model's own"
        yield _Variation("case", Cause("tokenizer", words), {"tokenizer": number})


def list_causes_of_form(form: ServedForm, dimension: int) -> Iterator[Cause]:
    """Yield how the form of vectors differs from a model's own, float32 with `dimension` numbers."""
    if form.size < dimension:
        yield Cause(
            "prefix",
            f"vectors have the first {form.size:,} of {dimension:,} numbers; ask for all of them, or cut all "
            "vectors",
        )
    kinds: dict[str, str] = {
        "int8": "codes of a byte",
        "bits": "bits (eight in a byte)",
        "signs": "the signs of numbers",
    }
    if form.precision != "float":
        yield Cause(
            "precision",
            f"vectors are {kinds[form.precision]} in place of numbers; ask for float, or store all vectors "
            "in this form",
        )
    if form.scaled is not None:
        words = (
            "vectors have length one, and the lengths of the model's count"
            if form.scaled
            else "vectors have other lengths than the model's"
        )
        yield Cause("normalisation", f"{words}; set its normalisation")
