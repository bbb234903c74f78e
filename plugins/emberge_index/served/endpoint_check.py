"""The check of a server by the verb `space`: does it embed as the model does, and if not, why."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.wording import count_noun, printable

from emberge_index.served.diagnosis import Diagnosis, SentTexts, diagnose
from emberge_index.served.settings import KeptVectors, KnownVectors, OwnVectors
from emberge_index.served.vector_server import ServedVectors, VectorServer
from emberge_index.space import CANARIES, LONG_CANARIES, SAME

if TYPE_CHECKING:
    from emberge_index.space import ModelSpace, Passport

_TEXTS = (*CANARIES, *LONG_CANARIES)


@dataclass(frozen=True)
class EndpointCheck:
    """Result of comparing a server's vectors with a model's, and the texts that the server refused."""

    name: str
    url: str
    diagnosis: Diagnosis
    texts: int
    refused: dict[str, str]
    is_passport: bool

    def lines(self) -> Iterator[str]:
        """Yield the outcome for the terminal."""
        found = self.diagnosis
        yield f"{self.name} at {self.url}"
        yield (
            f"  {count_noun(self.texts, 'text')}, {found.form.size:,} numbers: "
            f"{_describe_distance(found.distance)}"
        )
        for text, why in self.refused.items():
            yield f"  refused, so how it is cut is not known: {text!r}: {why}"
        if found.causes:
            yield from (f"  {cause.name}: {cause.words}" for cause in found.causes)
            yield f"  with that: {_describe_distance(found.explained)}"
        if found.is_same:
            yield "same: the server's vectors are the model's"
        elif found.causes:
            yield "different: the server's vectors are not the model's, for these reasons"
        else:
            more = (
                "a passport alone tells no more; give the model, and it is tried why"
                if self.is_passport
                else "none of the causes that were tried explains it, alone or with another: it may be "
                "another model; name others by --candidates"
            )
            yield f"different: the server's vectors are not the model's; {more}"

    def plain(self) -> dict[str, Any]:
        """Return the outcome as values of JSON."""
        found = asdict(self.diagnosis)
        del found["is_same"]
        infinite = float("inf")
        numbers = {
            name: None if found[name] == infinite else found[name]
            for name in ("distance", "explained")
        }
        verdict = "same" if self.diagnosis.is_same else "different"
        facts = {"model": self.name, "endpoint": self.url, "verdict": verdict}
        return {**facts, **found, **numbers, "texts": self.texts, "refused": self.refused}


def check_endpoint(
    space: ModelSpace,
    server: VectorServer,
    *,
    candidates: Sequence[ModelSpace] = (),
    queries: bool = False,
    sends_prompts: bool = False,
) -> EndpointCheck:
    """Return the comparison of a server's vectors of canaries with a model's.

    The server embeds canaries as documents, or as `queries`. With `sends_prompts` each is sent with the
    model's prompt before it. The model is loaded only if the server's vectors are not those that its passport
    has.

    Raises:
        ServiceError: if the server is not there, refuses the key, or answers nothing.
        DataError: if it answers with what are no vectors.
        CheckpointError: if the model cannot be read.
    """
    for candidate in candidates:
        _ = candidate.usable_folder  # before a request is sent
    passport = space.passport
    query, document = passport.prompts
    expected, other = (query, document) if queries else (document, query)
    sent = expected if sends_prompts else ""
    served, url = server.embed([sent + text for text in _TEXTS])
    texts = [_TEXTS[place] for place in served.places]
    asked = SentTexts(texts, sent, expected, other)
    refused = {printable(_TEXTS[place], 40): why for place, why in served.refused.items()}
    diagnosis = _diagnose(space, candidates, served, asked)
    return EndpointCheck(space.name, url, diagnosis, len(texts), refused, space.folder is None)


def _diagnose(
    space: ModelSpace, candidates: Sequence[ModelSpace], served: ServedVectors, asked: SentTexts
) -> Diagnosis:
    kept = _read_kept(space.passport)
    if space.folder is None and not (kept and asked.expected in kept.rows_by_prompt):
        raise DataError(
            f"{space.name}: the passport has no vectors of canaries for this side; write it again by "
            "`emberge space MODEL`"
        )
    known: KnownVectors
    if kept is not None and asked.expected in kept.rows_by_prompt:
        known = kept
        found = diagnose(served.rows, asked, known)
        if found.is_same or found.causes or space.folder is None:
            return found
    known = OwnVectors(
        [one.usable_folder for one in (space, *candidates)], space.backbone, space.device
    )
    names = [one.name for one in candidates]
    found = diagnose(
        served.rows,
        asked,
        known,
        candidates=names,
        progress=lambda what: _show(f"  trying: {what}"),
    )
    _show("")
    return found


def _show(line: str) -> None:
    """Show a line in place of the last one on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _read_kept(passport: Passport) -> KeptVectors | None:
    """Return the vectors that a passport has of all canaries, by prompt; None without them."""
    import numpy as np

    canaries, rows_by_prompt = passport.canaries, {}
    for side, prompt in zip(("query", "document"), passport.prompts, strict=True):
        rows, longer = canaries.get(side), canaries.get(f"long {side}")
        if rows is not None and longer is not None:
            rows_by_prompt[prompt] = np.concatenate([rows, longer])
    return KeptVectors(_TEXTS, rows_by_prompt) if rows_by_prompt else None


def _describe_distance(distance: float) -> str:
    if distance == float("inf"):
        return "the model's vectors are shorter"
    words = f"at most {distance:.2%} of a vector's length apart"
    return f"{words} ({SAME:.1%} is rounding)" if distance > SAME else words
