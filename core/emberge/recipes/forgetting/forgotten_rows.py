"""Proof that a result was made without rows of keys, as far as its provenance reaches.

The walk goes from a result to the steps that made it, also of other runs. A step's rows are known in two
ways: by the record of keys that its result keeps, and by selecting the rows again from the data as they are
now, whose hash must be the recorded one. A model from outside that has no record is unknown, and is named.
"""

from __future__ import annotations

import datetime
import glob
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from emberge.component_parts import parts_of
from emberge.contracts import ModelRef, Reference
from emberge.data import DataEntry, KeyList, StoredDataset
from emberge.errors import EmbergeError
from emberge.model_folder import model_fingerprint
from emberge.plugins import Plugins
from emberge.recipes.checks.verify import read_record
from emberge.recipes.forgotten import without_forgotten
from emberge.recipes.recipe import Recipe
from emberge.recipes.references import locate_model
from emberge.recipes.run.row_record import read_row_record
from emberge.recipes.run.step_call import build_finished_targets
from emberge.results import OutFolder, require_sound_result
from emberge.tensor_files import versions
from emberge.wording import count_noun, join_some

Evidence = Literal["seen", "differs", "selected again", "recorded", "no rows", "unknown"]
Verdict = Literal["seen", "differs", "not seen", "not known"]
_WORDS: Mapping[Evidence, str] = {
    "seen": "was given rows of the keys",
    "differs": "is not what its record says",
    "selected again": "its rows, selected again, are those of its record, and none has the keys",
    "recorded": "its record of rows has none of the keys; it was not compared with the data",
    "no rows": "is made of other results alone",
    "unknown": "cannot be told",
}
# Beginnings of the sentence that names the results with a bad verdict.
_SENTENCES: Mapping[str, str] = {
    "seen": "rows of the keys were given to",
    "differs": "a record does not fit what is there now:",
}


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A result, or a model or data set from outside, and what is known of the rows that it was given."""

    name: str
    evidence: Evidence
    words: str = ""
    fingerprint: str = ""
    rows: int | None = None
    """Number of rows that it was given; None if that is unknown."""

    def lines(self) -> Iterator[str]:
        """Yield the ancestor as lines for the terminal."""
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        yield f"  {self.name}: {_WORDS[self.evidence]}{rows}{f': {self.words}' if self.words else ''}"


@dataclass(frozen=True)
class RowsReport:
    """The ancestors of a result, and the verdict about the keys that were asked for."""

    model: str
    fingerprint: str
    keys: KeyList = field(repr=False)
    ancestors: tuple[Ancestor, ...]

    @property
    def verdict(self) -> Verdict:
        """`seen` or `differs` if any ancestor is, else `not known` if any is unknown, else `not seen`."""
        evidence = {ancestor.evidence for ancestor in self.ancestors}
        if "seen" in evidence:
            return "seen"
        if "differs" in evidence:
            return "differs"
        return "not known" if "unknown" in evidence else "not seen"

    def lines(self) -> Iterator[str]:
        """Yield the report as lines for the terminal, the verdict last."""
        for ancestor in self.ancestors:
            yield from ancestor.lines()
        yield self.sentence

    @property
    def sentence(self) -> str:
        """The verdict as a sentence that says no more than is known."""
        count = count_noun(len(self.keys.digests), "key")
        known = [
            a for a in self.ancestors if a.evidence in ("selected again", "recorded", "no rows")
        ]
        unknown = [a.name for a in self.ancestors if a.evidence == "unknown"]
        steps = count_noun(len(known), "step")
        if self.verdict in ("seen", "differs"):
            names = [a.name for a in self.ancestors if a.evidence == self.verdict]
            return f"{self.model}: {_SENTENCES[self.verdict]} {join_some(names)}"
        rest = f"; of {join_some(unknown)} it is not known" if unknown else ""
        return f"{self.model}: none of the {steps} that made it was given rows of the {count}{rest}"

    @property
    def certificate(self) -> dict[str, Any]:
        """The report as JSON values: hashes of keys, rows and fingerprints of steps, versions, verdict."""
        return {
            "format": 1,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "verdict": self.verdict,
            "sentence": self.sentence,
            "keys": self.keys.plain,
            "ancestors": [
                {
                    "name": ancestor.name,
                    "evidence": ancestor.evidence,
                    **({"words": ancestor.words} if ancestor.words else {}),
                    **({"fingerprint": ancestor.fingerprint} if ancestor.fingerprint else {}),
                    **({} if ancestor.rows is None else {"rows": ancestor.rows}),
                }
                for ancestor in self.ancestors
            ],
            "versions": versions(),
        }

    def raise_seen(self) -> None:
        """Raise an error if the keys' rows were seen, or if a result is not what its record says.

        Raises:
            EmbergeError: if so; has the names of the results.
        """
        if self.verdict in ("seen", "differs"):
            raise EmbergeError(self.sentence)


def trace_keys(
    folder: Path, digests: Collection[bytes], plugins: Plugins, recipe: Recipe | None = None
) -> RowsReport:
    """Return what is known of the rows that a result and all its ancestors were given.

    `digests` are the hashes of the keys to look for. With the `recipe` that was run into the result's OUT,
    its rows are selected again from the data as they are now.

    Raises:
        CheckpointError: if `folder` is no result.
    """
    folder = Path(folder)
    record = read_record(folder)
    if record is None:
        raise EmbergeError(
            f"{folder}: has no artifact.json, so nothing says which rows made it; name a result of a run"
        )
    walk = _Walk(frozenset(digests), plugins, recipe, folder.resolve().parent)
    walk.visit(folder.resolve())
    fingerprint = str(record.get("fingerprint", ""))
    return RowsReport(folder.name, fingerprint, KeyList.of(digests), tuple(walk.ancestors.values()))


class _Walk:
    """The walk over a result's ancestors, each of which is visited once."""

    def __init__(
        self, digests: frozenset[bytes], plugins: Plugins, recipe: Recipe | None, out: Path
    ) -> None:
        self.digests, self.plugins, self.out = digests, plugins, out
        self.folder = (
            recipe.path.parent if recipe is not None and recipe.path is not None else Path()
        )
        recipe = without_forgotten(recipe, out) if recipe is not None else Recipe(0, ())
        self.steps = {step.id: step.step for step in recipe.steps}
        self.targets = build_finished_targets(
            recipe, OutFolder(out), plugins, _read_fingerprints(out, self.steps)
        )
        self.ancestors: dict[str, Ancestor] = {}

    def visit(self, folder: Path) -> None:
        """Add the result in `folder` and all its ancestors."""
        key = str(folder)
        if key in self.ancestors:
            return
        record = read_record(folder) or {}
        self.ancestors[key] = Ancestor(folder.name, "unknown")  # also ends a circle
        self.ancestors[key] = self._examine(folder, record)
        for entry in _list_entries(record, "inputs"):
            self._follow(folder, entry)

    def _examine(self, folder: Path, record: Mapping[str, Any]) -> Ancestor:
        """Return what is known of the rows that one result was given, without its ancestors."""
        listed = _list_entries(record, "rows")
        counts = [entry.get("rows") for entry in listed]
        rows = sum(n for n in counts if isinstance(n, int)) if counts else None
        blank = Ancestor(
            *(str(record.get("step") or folder.name), "no rows", ""),
            fingerprint=str(record.get("fingerprint", "")),
            rows=rows,
        )
        try:
            require_sound_result(folder, self.targets.hashes)
            recorded_keys = read_row_record(folder, record)
        except EmbergeError as error:
            return replace(blank, evidence="differs", words=str(error))
        if recorded_keys is None:
            kinds = {entry.get("kind") for entry in _list_entries(record, "inputs")}
            is_given_rows = not kinds.isdisjoint(("rows", "data", "hub data"))
            return replace(blank, evidence="unknown") if is_given_rows else blank
        if any(digest in recorded_keys for digest in self.digests):
            return replace(blank, evidence="seen")
        evidence, words = self._compare(folder, blank.name, listed)
        return replace(blank, evidence=evidence, words=words)

    def _compare(self, folder: Path, name: str, listed: Sequence[Any]) -> tuple[Evidence, str]:
        """Compare a record of rows with the rows that the recipe selects from the data as they are now."""
        if folder.parent != self.out or name not in self.steps:
            return "recorded", ""
        try:
            datasets = self._select_rows(name)
        except (EmbergeError, ConnectionError, OSError) as error:
            return "recorded", str(error)
        selected = {dataset.info.name: dataset.fingerprint for dataset in datasets}
        recorded = {str(entry.get("dataset")): str(entry.get("content")) for entry in listed}
        changed = [n for n in {**recorded, **selected} if selected.get(n) != recorded.get(n)]
        if changed:
            return "differs", f"the rows of {join_some(changed)} are not those that it was given"
        return "selected again", ""

    def _select_rows(self, step: str) -> list[StoredDataset]:
        """Return the datasets with keys that the recipe's step is given now."""
        return [
            dataset
            for _, entry in parts_of(self.steps[step], DataEntry, Reference)
            if isinstance(entry, DataEntry)
            for dataset in self.targets.keyed_datasets(entry)
        ]

    def _follow(self, folder: Path, entry: Mapping[str, Any]) -> None:
        """Visit the result or model that an input of a result names, or examine its data."""
        kind, text, content = (str(entry.get(key, "")) for key in ("kind", "reference", "content"))
        if kind == "step" or (kind == "model" and text.startswith("$")):
            self._follow_step(folder.parent, text, content)
        elif kind == "model":
            self._follow_model(text, content)
        elif kind != "rows":
            words = "a data set without keys of rows; name its key, or a bag, in the recipe"
            name = text or "an input without a name"
            self.ancestors.setdefault(f"data {content}", Ancestor(name, "unknown", words))

    def _follow_step(self, out: Path, text: str, content: str) -> None:
        """Visit the result of a step in the OUT of another, which has the content that this one was given."""
        step = ModelRef(text).step or text.removeprefix("$")
        link = OutFolder(out).link(step)
        candidates = [link, *sorted(out.glob(f"{glob.escape(link.name)}-????????"))]
        for folder in dict.fromkeys(path.resolve() for path in candidates if path.is_dir()):
            if self._has_content(folder, content):
                self.visit(folder)
                return
        words = f"{out.name} no longer has the result that was used"
        self.ancestors.setdefault(f"step {content}", Ancestor(step, "unknown", words))

    def _has_content(self, folder: Path, content: str) -> bool:
        """Return whether a result, or a checkpoint that it kept, has the content that an input names."""
        record = read_record(folder) or {}
        if record.get("fingerprint") == content:
            return True
        if record.get("kind") != "model":
            return False
        return content in self._list_contents(folder, record)

    def _list_contents(self, folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
        """Yield the contents of a model and its checkpoints, or of an adapter on each of its inputs."""
        hashes = self.targets.hashes
        if not (folder / "adapter_config.json").is_file():
            for model in (folder, *sorted(folder.glob("checkpoints/*"))):
                yield model_fingerprint(model, hashes)
            return
        for entry in _list_entries(record, "inputs"):
            text = str(entry.get("reference", ""))
            base = self._find_base(folder.parent, text) if entry.get("kind") == "model" else None
            if base is not None:
                yield model_fingerprint(base, hashes, folder)

    def _find_base(self, out: Path, text: str) -> Path | None:
        """Return the folder of the model that an adapter is on; None if it is not at hand."""
        step = ModelRef(text).step
        if step is not None:
            link = OutFolder(out).link(step)
            return link.resolve() if link.is_dir() else None
        try:
            return locate_model(ModelRef(text, self.folder), self.plugins, "metadata").folder
        except (EmbergeError, ConnectionError, OSError):
            return None

    def _follow_model(self, text: str, content: str) -> None:
        """Visit a model from outside, which may be a result of another run."""
        try:
            located = locate_model(ModelRef(text, self.folder), self.plugins, "metadata")
            folder = (located.adapter or located.folder).resolve()
            record = read_record(folder)
        except (EmbergeError, ConnectionError, OSError):
            record = None
        if record is not None:
            self.visit(folder)
            return
        words = "a model from outside, without a record of its training data"
        self.ancestors.setdefault(f"model {content}", Ancestor(text, "unknown", words))


def _list_entries(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the mappings in a list of a record, which may come from a stranger."""
    entries = record.get(name)
    return [e for e in entries if isinstance(e, Mapping)] if isinstance(entries, list) else []


def _read_fingerprints(out: Path, steps: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint of the current result of each step that has one."""
    records = {step: read_record(OutFolder(out).link(step)) for step in steps}
    return {step: str(r.get("fingerprint")) for step, r in records.items() if r is not None}
