"""Hold a result against what it says of itself: its files, its weights' headers, and what it was made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.errors import CheckpointError, EmbergeError
from emberge.merging.planning.merge_header import read_provenance
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_files import hashed_files
from emberge.recipes.folder.provenance import CHANGING
from emberge.recipes.folder.run_folder import ARTIFACT
from emberge.tensor_files.content_hash import FileContent, contents_of
from emberge.tensor_files.safetensors_header import read_header
from emberge.wording import count_noun, human_size, join_some

__all__ = ["Finding", "Verification", "verify_result"]

State = Literal["holds", "differs", "missing", "extra", "not seen"]
_AGAIN = "get it again from where the folder came from, or run the recipe again"
_KNOWN = ("fingerprint", "seed", "recipe", "versions", "plugins")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, what became of it, and the words for it."""

    what: str
    state: State
    words: str

    @property
    def wrong(self) -> bool:
        """Whether it is a difference; what could not be seen is none."""
        return self.state not in ("holds", "not seen")


@dataclass(frozen=True)
class Verification:
    """All that was looked at in a folder."""

    folder: Path
    title: str
    findings: tuple[Finding, ...]

    @property
    def differences(self) -> tuple[Finding, ...]:
        """What is not as it was published."""
        return tuple(finding for finding in self.findings if finding.wrong)

    def lines(self) -> Iterator[str]:
        """A table for people: what, whether it holds, and the rest in words."""
        yield f"{self.folder}: {self.title}"
        width = min(44, max((len(f.what) for f in self.findings), default=0))
        for finding in self.findings:
            yield f"  {finding.what:<{width}}  {finding.state:<8}  {finding.words}".rstrip()

    def raise_differences(self) -> None:
        """Raise what differs, if anything does.

        Raises:
            EmbergeError: with a line for each difference, saying what to do.
        """
        if self.differences:
            raise EmbergeError("\n".join(f"{f.what}: {f.words}" for f in self.differences))


def verify_result(folder: Path, inputs: Iterator[Finding] | None = None) -> Verification:
    """Look at a result, or at a bare folder of merged weights, wherever it was copied to.

    With an artifact.json every file's presence, size and hash are held against it; the headers of weights
    are held against it and against each other. `inputs` are findings about what it was made of.

    Raises:
        CheckpointError: when the folder is missing, or holds nothing to verify it by.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    record = read_record(folder)
    inside = sorted(p.parent.name for p in folder.glob(f"*/{ARTIFACT}") if p.parent.is_symlink())
    if record is None and inside:
        raise CheckpointError(
            f"{folder}: holds results, and is none; name one of them: {folder / inside[0]}"
        )
    headers = _headers(folder)
    if record is None and not any(headers.values()):
        raise CheckpointError(
            f"{folder}: has neither an {ARTIFACT} nor weights whose headers say how they were made; it was "
            "not made by emberge, or another tool has saved it again"
        )
    findings = [*_files(folder, record), *_weights(folder, headers), *_says(record, headers)]
    return Verification(folder, _title(record), (*findings, *(inputs or ())))


def read_record(folder: Path) -> dict[str, Any] | None:
    """All that a folder's artifact.json holds; None when there is none.

    Raises:
        CheckpointError: when it is damaged.
    """
    path = folder / ARTIFACT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); {_AGAIN}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: is no record of a result; {_AGAIN}")
    return found


def _title(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return f"merged weights without an {ARTIFACT}: hashes of files are not known"
    return f"{record.get('kind')} of step '{record.get('step')}' ({record.get('component')})"


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def _files(folder: Path, record: Mapping[str, Any] | None) -> Iterator[Finding]:
    if record is None:
        return
    listed = record.get("files")
    if not isinstance(listed, Mapping):
        yield Finding(ARTIFACT, "not seen", "lists no files: an older release wrote it")
        return
    there = contents_of(folder, leave=CHANGING)
    for name, said in listed.items():
        known = FileContent.of(said)
        if known is None:
            yield Finding(name, "differs", f"{ARTIFACT} says nothing sound of it; {_AGAIN}")
        elif name not in there:
            yield Finding(name, "missing", f"is missing; {_AGAIN}")
        else:
            yield _compared(name, known, there[name])
    decisive = hashed_files(folder) if record.get("kind") == "model" else ()
    for path in decisive:
        name = path.relative_to(folder).as_posix()
        if name not in listed:
            yield Finding(name, "extra", "is no part of the result; move it away")


def _compared(name: str, known: FileContent, found: FileContent) -> Finding:
    if known.hash == found.hash:
        count = f", {len(known.tensors)} tensors" if known.tensors else ""
        return Finding(name, "holds", human_size(found.size) + count)
    if known.size != found.size:
        less, words = known.size - found.size, "fewer" if found.size < known.size else "more"
        what = f"has {abs(less):,} bytes {words} than it was published with"
    else:
        what = "is not as it was published"
    return Finding(name, "differs", f"{what}{_tensors(known, found)}; {_AGAIN}")


def _tensors(known: FileContent, found: FileContent) -> str:
    """Which tensors differ, as far as both are sound files of weights."""
    if not known.tensors or not found.tensors:
        return ""
    lost = [name for name in known.tensors if name not in found.tensors]
    other = [n for n in known.tensors if found.tensors.get(n, known.tensors[n]) != known.tensors[n]]
    new = [name for name in found.tensors if name not in known.tensors]
    parts = [
        f"{join_some(names)} {words}"
        for names, words in ((other, "changed"), (lost, "gone"), (new, "new"))
        if names
    ]
    return f": {', '.join(parts)}" if parts else ": only its header changed, no tensor"


# ── weights ─────────────────────────────────────────────────────────────────────────────────────


def _headers(folder: Path) -> dict[str, dict[str, Any] | None]:
    """What each weight file's header says of how it was made, by the file's name."""
    found: dict[str, dict[str, Any] | None] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            found[name.as_posix()] = read_provenance(read_header(path)[1])
        except CheckpointError:
            found[name.as_posix()] = None
    return found


def _weights(folder: Path, headers: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the weights are sound: headers that fit their files, and an index that fits both."""
    if not headers:
        return
    faults = []
    for name in headers:
        try:
            specs = read_header(folder / name)[0].values()
        except CheckpointError as error:
            faults.append(Finding(name, "differs", str(error).removeprefix(f"{folder / name}: ")))
            continue
        size = (folder / name).stat().st_size
        end = max((s.offset + s.nbytes for s in specs), default=size)
        if end < size:
            words = f"has {size - end:,} bytes after its last tensor; {_AGAIN}"
            faults.append(Finding(name, "differs", words))
    yield from faults
    if faults or not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        return
    try:
        count = len(Checkpoint(folder).specs)
    except CheckpointError as error:
        yield Finding("weights", "differs", f"{error}; {_AGAIN}")
        return
    yield Finding("weights", "holds", f"{count} tensors, within their files and as indexed")


# ── what was said ───────────────────────────────────────────────────────────────────────────────


def _says(record: Mapping[str, Any] | None, headers: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether all that speaks of the making says the same."""
    told = {name: said for name, said in headers.items() if said}
    details = (record or {}).get("details")
    merged = isinstance(details, Mapping) and "strategy" in details
    for name in headers if merged or told else ():
        if name not in told:
            words = "its header does not say how it was made: another tool has saved it again"
            yield Finding(f"header of {name}", "differs", f"{words}; {_AGAIN}")
    if not told:
        return
    first, said = next(iter(told.items()))
    for name, other in told.items():
        if other != said:
            words = f"says something else than that of {first}: they come from two merges; {_AGAIN}"
            yield Finding(f"header of {name}", "differs", words)
    unlike = [] if record is None else list(_unlike(said, record))
    for words in unlike:
        yield Finding(ARTIFACT, "differs", f"{words}: one of them is another result's; {_AGAIN}")
    if not unlike:
        yield Finding("header", "holds", _told(said))


def _unlike(said: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    for key in _KNOWN:
        if key in said and said[key] != record.get(key):
            yield f"its {key} is {_short(record.get(key))} and the weights' header says {_short(said[key])}"
    details = record.get("details")
    if isinstance(details, Mapping):
        yield from _unlike_method(said, details)


def _unlike_method(said: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    for key in ("strategy", "rules"):
        if key in details and said.get(key) != details[key]:
            yield f"its {key} is {_short(details[key])} and the weights' header says {_short(said.get(key))}"
    there = said.get("models")
    if not isinstance(there, Mapping):
        return
    for key, part, words in (
        ("weights", "weight", "weights"),
        ("models", "content", "models' hashes"),
    ):
        here = details.get(key)
        values = [one.get(part) for one in there.values() if isinstance(one, Mapping)]
        if isinstance(here, Mapping) and not all(value in values for value in here.values()):
            yield f"its {words} are not those of the weights' header"


def _told(said: Mapping[str, Any]) -> str:
    links = [
        next(iter(one)) if isinstance(one, Mapping) else one for one in said.get("strategy", ())
    ]
    models = said.get("models")
    count = count_noun(len(models) if isinstance(models, Mapping) else 1, "model")
    made = said.get("versions")
    by = f", emberge {made.get('emberge')}" if isinstance(made, Mapping) else ""
    return f"{' → '.join(map(str, links))} of {count}, seed {said.get('seed')}{by}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
