"""Texts on which an exported model is compared with the original, and the judgements of a retrieval set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.data import load_eval_set, pick_eval_sets

if TYPE_CHECKING:
    from emberge import Reader


# Short and long, in several scripts, with numbers and code.
_SENTENCES = (
    "a cat",
    "The committee postponed its decision until the auditors had seen all of the accounts.",
    "How do I list every file that was changed in the last two days?",
    "Die Brücke bleibt wegen Bauarbeiten bis Ende Oktober gesperrt.",
    "Où peut-on renouveler une carte d'identité le samedi matin ?",
    "El volcán entró en erupción poco después de la medianoche.",
    "天气预报说明天下午会下雨。",
    "Сколько стоит билет до Санкт-Петербурга?",
    "for (int i = 0; i < n; ++i) total += values[i];",
    "SELECT name, count(*) FROM visits WHERE year = 2021 GROUP BY name;",
    "3.14159, 2.71828, 1.41421",
    "Mitochondria produce most of the chemical energy that a cell needs, and have DNA of their own, which "
    "is inherited from the mother; this is why they are of use for tracing lines of descent.",
    "The tenant shall give notice in writing not less than three months before the end of the term, "
    "failing which the lease is extended by a year on the terms that were agreed on.",
    "not bad at all",
    "bad, not good at all",
    "Whisk the eggs with the sugar until pale, fold in the flour, and bake for half an hour.",
)


@dataclass(frozen=True)
class Probe:
    """Documents and queries by id, and each query's document grades; no grades without a retrieval set."""

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str] = field(default_factory=dict)
    relevant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def read_probe(
    catalogue: Path | None, name: str | None, readers: Sequence[Reader], limit: int
) -> Probe:
    """Return a catalogue's retrieval set, thinned to `limit` queries; without a catalogue, stock sentences.

    Raises:
        DataError: if the catalogue has no retrieval set.
    """
    if catalogue is None:
        return Probe("sentences", {str(n): text for n, text in enumerate(_SENTENCES)})
    sets = pick_eval_sets(catalogue, (name,) if name else (), readers=readers)
    retrieval_set = next((eval_set for eval_set in sets if eval_set.task == "retrieval"), None)
    if retrieval_set is None:
        raise DataError(f"{catalogue}: has no retrieval set to take nDCG@10 on")
    data: Any = load_eval_set(retrieval_set, readers=readers, limit=limit)
    return Probe(retrieval_set.name, data.corpus, data.queries, data.relevant)
