"""The `stdlib_corpus` step: a code-search data set of installed packages, without a download."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from emberge import (
    Artifact,
    ArtifactKind,
    Count,
    DataError,
    Preflight,
    Problem,
    Step,
    Workspace,
    hash_evenly,
)
from emberge_data import write_entries, write_json_rows

from emberge_demo.installed_code import (
    STDLIB,
    Definition,
    describe_missing_package,
    find_package_folder,
    read_definitions,
    read_version,
)

_HELD_OUT = 0.25  # share of the modules that is for search
_FEWEST_WORDS = 3  # of a query
_LONGEST_TEXT = 2000  # characters of a document
_COMMON_FACTS = {"task": "retrieval", "language": "en", "symmetric": False, "instruction": ""}


@dataclass(frozen=True, kw_only=True)
class StdlibCorpus(Step):
    """A code-search dataset of the Python files of installed packages.

    A query is the first paragraph of a docstring; its document is the function or method without the
    docstring. Modules are split by a hash of their name: most are for training. A quarter of the modules is
    for search; a quarter of those that have queries is for development, the rest for the test. Every package
    in `out_of_domain` makes a separate search set. A query has at least three words and is neither an example
    nor a signature. A query or document that came before, in any package, is left out. Documents are cut to
    2,000 characters, at the end of a line. `limit`, `test_queries`, `dev_queries` and `test_documents` keep
    even samples; a smaller sample is part of a larger one. For demos and tests.

    Example:
        corpus:
          stdlib_corpus: {limit: 5000, test_queries: 200}
    """

    packages: tuple[str, ...] = (STDLIB,)
    """Packages to train on and to test in domain; `stdlib` is the standard library."""
    out_of_domain: tuple[str, ...] = ("numpy", "scipy", "sklearn")
    limit: Count | None = None
    test_queries: Count = 300
    dev_queries: Count = 100
    test_documents: Count = 600

    produces: ClassVar[ArtifactKind] = "data"

    def identity(self) -> str:
        """Return the versions of Python and the packages, on which the functions depend."""
        names = (*self.packages, *self.out_of_domain)
        packages = [
            f"{n} {read_version(n)}" if find_package_folder(n) else f"{n} is missing" for n in names
        ]
        return "; ".join([f"python {read_version(STDLIB)}", *packages])

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.packages:
            yield context.problem("packages names nothing to train on; write [stdlib]", "packages")
        yield from self._check_packages(context)

    def _check_packages(self, context: Preflight) -> Iterator[Problem]:
        named: set[str] = set()
        for option in ("packages", "out_of_domain"):
            for name in getattr(self, option):
                if name in named:
                    message = f"package '{name}' is named twice; train on it or test on it, once"
                    yield context.problem(message, option)
                elif find_package_folder(name) is None:
                    yield context.problem(describe_missing_package(name), option)
                named.add(name)

    def run(self, workspace: Workspace) -> Artifact:
        """Read the packages' files and write training pairs, evaluation sets and their catalogue.

        Raises:
            DataError: if the package is not installed or has no documented function.
        """
        return _CorpusWriter(self, workspace).write()


def select_definitions(documented: Iterable[Definition], seen: set[str]) -> Iterator[Definition]:
    """Yield distinct definitions that have a usable query and a body, cut to length."""
    for definition in documented:
        document = _cut_document(definition.document)
        if not document or not _has_usable_query(definition):
            continue
        keys = {f"q {' '.join(definition.query.lower().split())}", f"d {definition.document}"}
        if keys & seen:
            continue
        seen |= keys
        yield replace(definition, document=document)


def _has_usable_query(definition: Definition) -> bool:
    query, name = definition.query, definition.name.rpartition(".")[2]
    return len(query.split()) >= _FEWEST_WORDS and not query.startswith((">>>", f"{name}("))


def _cut_document(document: str) -> str:
    if len(document) <= _LONGEST_TEXT:
        return document
    return document[:_LONGEST_TEXT].rpartition("\n")[0].rstrip() or document[:_LONGEST_TEXT]


def _draw_sample(
    definitions: Sequence[Definition], count: int | None, salt: str
) -> list[Definition]:
    """Return an even sample of at most `count`; a smaller one is part of a larger one of this `salt`."""
    sample = sorted(definitions, key=lambda d: (hash_evenly(salt, d.id, d.query), d.query))[:count]
    return sorted(sample, key=lambda d: (d.id, d.query))


class _CorpusWriter:
    """The writer of one corpus into a step's folder; the same packages always give the same bytes."""

    def __init__(self, options: StdlibCorpus, workspace: Workspace) -> None:
        self._options, self._workspace = options, workspace
        self._seen: set[str] = set()
        self._catalogue: dict[str, Any] = {"train": [], "eval": []}

    def write(self) -> Artifact:
        """Write training pairs, evaluation sets and the catalogue; return the step's artifact."""
        options = self._options
        size = 0
        for number, package in enumerate((*options.packages, *options.out_of_domain)):
            total = len(options.packages) + len(options.out_of_domain)
            self._workspace.progress(number, total, "packages", f"reading {package}")
            usable = self._read_package(package)
            if package in options.out_of_domain:
                self._write_search_set(package, usable, "out")
                continue
            training = [d for d in usable if not _is_held_out(d.module)]
            size += self._write_training(package, _draw_sample(training, options.limit, "train"))
            self._write_search_set(package, [d for d in usable if _is_held_out(d.module)], "in")
        write_entries(self._workspace.folder, self._catalogue)
        return Artifact(kind="data", size=size)

    def _read_package(self, package: str) -> list[Definition]:
        folder = find_package_folder(package)
        if folder is None:
            raise DataError(describe_missing_package(package))
        usable = list(select_definitions(read_definitions(package, folder), self._seen))
        if not usable:
            raise DataError(
                f"package '{package}' has no documented functions in {folder}; leave it out"
            )
        return usable

    def _write_training(self, package: str, rows: Sequence[Definition]) -> int:
        path = f"train/{package}.jsonl"
        pairs = ({"query": d.query, "pos": [d.document], "neg": []} for d in rows)
        write_json_rows(self._workspace.folder / path, pairs)
        source = {"package": package, "version": read_version(package)}
        source |= {"licence": "PSF-2.0"} if package == STDLIB else {}
        entry = {"name": package, "file": path, **_COMMON_FACTS, "source": source}
        self._catalogue["train"].append(entry)
        return len(rows)

    def _write_search_set(
        self, package: str, definitions: Sequence[Definition], domain: str
    ) -> None:
        documents = _draw_sample(definitions, self._options.test_documents, "documents")
        dev = [d for d in documents if domain == "in" and hash_evenly("dev", d.module) % 4 == 0]
        other_documents = [d for d in documents if d not in dev]
        test = _draw_sample(other_documents, self._options.test_queries, "test")
        if not test:
            raise DataError(
                f"package '{package}' has too few modules to hold some out; leave it out"
            )
        dev = _draw_sample(dev, self._options.dev_queries, "dev")
        ids = _make_ids(documents)
        folder = f"eval/{package}"
        corpus = ({"_id": ids[d], "title": "", "text": d.document} for d in documents)
        write_json_rows(self._workspace.folder / folder / "corpus.jsonl", corpus)
        queries = ({"_id": f"q:{ids[d]}", "text": d.query} for d in (*test, *dev))
        write_json_rows(self._workspace.folder / folder / "queries.jsonl", queries)
        self._write_answers(f"{folder}/qrels.tsv", [ids[d] for d in test])
        if dev:
            self._write_answers(f"{folder}/qrels_dev.tsv", [ids[d] for d in dev])
        facts = {"domain": domain, "metric": "ndcg_at_10"}
        self._catalogue["eval"].append({"name": package, "dir": folder, **_COMMON_FACTS, **facts})

    def _write_answers(self, name: str, ids: Sequence[str]) -> None:
        """Write which document answers each query: the one with the query's own id."""
        lines = [f"q:{id_}\t{id_}\t1" for id_ in ids]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
        (self._workspace.folder / name).write_text(text, encoding="utf-8")


def _is_held_out(module: str) -> bool:
    return hash_evenly("split", module) < _HELD_OUT * 2**64


def _make_ids(definitions: Sequence[Definition]) -> dict[Definition, str]:
    """Map each definition to a readable id; a name that a module defines twice gets a number."""
    ids: dict[Definition, str] = {}
    counts: dict[str, int] = {}
    for definition in definitions:
        counts[definition.id] = counts.get(definition.id, 0) + 1
        is_repeated = counts[definition.id] > 1
        ids[definition] = (
            f"{definition.id}#{counts[definition.id]}" if is_repeated else definition.id
        )
    return ids
