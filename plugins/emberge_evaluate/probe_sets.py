"""The `probe_sets` step: evaluation sets from texts that are installed on every machine."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    DataError,
    Expected,
    NumberRange,
    Preflight,
    Problem,
    Step,
    TaskKind,
    Workspace,
    hash_evenly,
)
from emberge_data import write_entries, write_json_rows

from emberge_evaluate.probe_texts import (
    LICENSED_PACKAGES,
    read_cpp,
    read_languages,
    read_licences,
    read_mathematics,
    read_papers,
    read_places,
    read_things,
)

Pair = tuple[str, str]
Source = Callable[[], Iterator[Pair]]
# The function that yields each set's texts, and the package that the texts come from.
_SOURCES: Mapping[str, tuple[Source, tuple[str, ...]]] = {
    "licences": (read_licences, LICENSED_PACKAGES),
    "papers": (read_papers, ("mteb",)),
    "mathematics": (read_mathematics, ("sympy",)),
    "cpp": (read_cpp, ("pyarrow",)),
    "places": (read_places, ("tzdata",)),
    "things": (read_things, ("rich",)),
    "languages": (read_languages, ("mteb",)),
}
_CLASSIFIED_SETS = ("languages",)
_FEWEST_TEXTS = 20
_LONGEST_TEXT = 1000
_TRAINING_TEXTS = 32  # labelled texts of each label to fit classifiers on


@dataclass(frozen=True, kw_only=True)
class ProbeSets(Step):
    """Small evaluation sets of seven domains, to measure forgetting without own data.

    The texts come with Python and the project's dependencies. Six sets are for retrieval: `licences` (the
    first sentence of a paragraph finds the rest), `papers` (the description of a data set finds the title of
    its paper), `mathematics`, `cpp` (C++ declarations), `places` (a country finds its cities) and `things`
    (one name of an emoji finds another). `languages` is a classification (the name of a language, its
    family). Nearly all texts are English, as machines share no texts in other languages. The domain of the
    sets is "elsewhere", so `evaluate` measures forgetting on them. A model that is trained on texts like
    these needs other sets.

    Other versions of Python or of the packages have other texts. If the texts of a set are not on the
    machine, the set is omitted with a warning.

    Example:
        probe:
          probe_sets: {queries: 100}
    """

    queries: Annotated[int, NumberRange(least=_FEWEST_TEXTS)] = 150
    """Largest number of queries of a set, or of texts to classify."""
    documents: Annotated[int, NumberRange(least=_FEWEST_TEXTS)] = 400
    """Largest number of documents of a set; relevant documents of its queries are always kept."""

    produces: ClassVar[ArtifactKind] = "data"

    def identity(self) -> str:
        """Return the versions of Python and the packages, on which the texts depend."""
        return "; ".join(
            f"{name} {version_text}" for name, version_text in self._list_versions().items()
        )

    def _list_versions(self) -> dict[str, str]:
        packages = dict.fromkeys(name for _, names in _SOURCES.values() for name in names)
        return {
            "python": platform.python_version(),
            **{name: _read_version(name) for name in packages},
        }

    def check(self, context: Preflight) -> Iterable[Problem]:
        context.expect(
            Expected(
                sets={f"probe_{set_name}": _find_task_kind(set_name) for set_name in _SOURCES},
                splits=("test",),
            )
        )
        return ()

    def run(self, workspace: Workspace) -> Artifact:
        """Write the sets and their catalogue.

        Raises:
            DataError: if no set has enough texts on this machine.
        """
        entries, counts = [], {}
        for number, (name, (read_texts, _)) in enumerate(_SOURCES.items()):
            workspace.progress(number, len(_SOURCES), "sets", name)
            pairs = list(_drop_repeats(read_texts()))
            if len(pairs) < _FEWEST_TEXTS:
                workspace.warn(
                    f"the set '{name}' is left out: this machine has too few of its texts"
                )
                continue
            folder = workspace.folder / "eval" / name
            if name in _CLASSIFIED_SETS:
                counts[name] = _write_classification(folder, pairs, self.queries)
            else:
                counts[name] = _write_retrieval(folder, pairs, self.queries, self.documents)
            task = _find_task_kind(name)
            entry = {"name": f"probe_{name}", "dir": f"eval/{name}", "task": task, "language": "en"}
            side = {"symmetric": task == "classification", "instruction": ""}
            entries.append({**entry, **side, "domain": "elsewhere"})
        if not entries:
            raise DataError("no set of the probe has enough texts on this machine")
        write_entries(workspace.folder, {"eval": entries})
        details = {"counts": counts, "versions": self._list_versions()}
        return Artifact(
            kind="data",
            size=sum(set_counts["queries"] for set_counts in counts.values()),
            details=details,
        )


def _find_task_kind(name: str) -> TaskKind:
    return "classification" if name in _CLASSIFIED_SETS else "retrieval"


def _read_version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _drop_repeats(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the pairs, cut to the longest length, without duplicates."""
    met = set[Pair]()
    for pair in pairs:
        query, document = (text.encode(errors="replace").decode()[:_LONGEST_TEXT] for text in pair)
        key = query.lower(), document.lower()
        if key not in met and query.lower() != document.lower():
            met.add(key)
            yield query, document


def _sample(texts: Iterable[str], count: int) -> list[str]:
    """Return an even sample that depends only on the texts; a smaller sample is part of a larger one."""
    return sorted(dict.fromkeys(texts), key=lambda text: (hash_evenly("probe", text), text))[:count]


def _write_retrieval(
    folder: Path, pairs: Sequence[Pair], queries: int, documents: int
) -> dict[str, int]:
    relevant: dict[str, list[str]] = {}
    for query, document in pairs:
        relevant.setdefault(query, []).append(document)
    sampled_queries = _sample(relevant, queries)
    needed = list(
        dict.fromkeys(document for query in sampled_queries for document in relevant[query])
    )
    other_documents = _sample(
        {document for _, document in pairs} - {*needed}, max(0, documents - len(needed))
    )
    ids = {
        document: f"d{number}"
        for number, document in enumerate(sorted([*needed, *other_documents]))
    }
    corpus = ({"_id": ids[passage], "title": "", "text": passage} for passage in sorted(ids))
    write_json_rows(folder / "corpus.jsonl", corpus)
    write_json_rows(
        folder / "queries.jsonl",
        ({"_id": f"q{number}", "text": query} for number, query in enumerate(sampled_queries)),
    )
    lines = [
        f"q{number}\t{ids[document]}\t1"
        for number, query in enumerate(sampled_queries)
        for document in dict.fromkeys(relevant[query])
    ]
    text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
    (folder / "qrels.tsv").write_text(text, encoding="utf-8")
    return {"queries": len(sampled_queries), "documents": len(ids)}


def _write_classification(folder: Path, pairs: Sequence[Pair], queries: int) -> dict[str, int]:
    label_of = dict(pairs)
    test_texts = _sample(label_of, queries)
    training_texts = [text for text in label_of if text not in {*test_texts}]
    labels = sorted({*label_of.values()})
    train_texts = [
        text
        for label in labels
        for text in _sample(
            (text_of_label for text_of_label in training_texts if label_of[text_of_label] == label),
            _TRAINING_TEXTS,
        )
    ]
    for part, part_texts in (("train", train_texts), ("test", test_texts)):
        rows: Iterable[Mapping[str, Any]] = ({"text": t, "label": label_of[t]} for t in part_texts)
        write_json_rows(folder / f"{part}.jsonl", rows)
    return {"queries": len(test_texts), "documents": len(train_texts)}
