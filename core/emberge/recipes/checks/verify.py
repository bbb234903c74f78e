"""The check of a result against its provenance: its files and its weights' headers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.errors import CheckpointError, EmbergeError
from emberge.model_folder import Checkpoint, hashed_files
from emberge.results import ARTIFACT, CHANGING
from emberge.tensor_files import FileContent, contents_of, read_header, read_provenance
from emberge.wording import count_noun, human_size, join_some

State = Literal["holds", "differs", "missing", "extra", "not seen"]
_ADVICE = "get it again from where the folder came from, or run the recipe again"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its object, its state, and a description."""

    what: str
    state: State
    words: str

    @property
    def wrong(self) -> bool:
        """True if the check found a difference; False if not, and if nothing could be checked."""
        return self.state not in ("holds", "not seen")


@dataclass(frozen=True)
class Verification:
    """The findings of a folder."""

    folder: Path
    title: str
    findings: tuple[Finding, ...]

    @property
    def differences(self) -> tuple[Finding, ...]:
        """The findings that differ from the published result."""
        return tuple(finding for finding in self.findings if finding.wrong)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table: the object of each check, its state, and a description."""
        yield f"{self.folder}: {self.title}"
        width = min(44, max((len(f.what) for f in self.findings), default=0))
        for finding in self.findings:
            yield f"  {finding.what:<{width}}  {finding.state:<8}  {finding.words}".rstrip()

    def raise_differences(self) -> None:
        """Raise an error that lists the differences, if there are any.

        Raises:
            EmbergeError: if there are differences; has a line for each, and the remedy.
        """
        if self.differences:
            raise EmbergeError("\n".join(f"{f.what}: {f.words}" for f in self.differences))


def verify_result(folder: Path) -> Verification:
    """Check a result, or a bare folder of merged weights, wherever it was copied to.

    If there is an artifact.json, every file's presence, size and hash are compared with it. The headers of
    weights are compared with each other.

    Raises:
        CheckpointError: if the folder is missing, or contains nothing by which it can be verified.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    record = _read_record(folder)
    linked_results = sorted(
        p.parent.name for p in folder.glob(f"*/{ARTIFACT}") if p.parent.is_symlink()
    )
    if record is None and linked_results:
        raise CheckpointError(
            f"{folder}: holds results, and is none; name one of them: {folder / linked_results[0]}"
        )
    headers = _read_headers(folder)
    if record is None and not any(headers.values()):
        raise CheckpointError(
            f"{folder}: has neither an {ARTIFACT} nor weights whose headers say how they were made; it was "
            "not made by emberge, or another tool has saved it again"
        )
    findings = [
        *_check_files(folder, record),
        *_check_weights(folder, headers),
        *_check_provenance(record, headers),
    ]
    return Verification(folder, _describe_result(record), tuple(findings))


def _read_record(folder: Path) -> dict[str, Any] | None:
    """Read a folder's artifact.json; return None if there is none.

    Raises:
        CheckpointError: if the file is damaged.
    """
    path = folder / ARTIFACT
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); {_ADVICE}") from None
    if not isinstance(record, dict):
        raise CheckpointError(f"{path}: is no record of a result; {_ADVICE}")
    return record


def _describe_result(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return f"merged weights without an {ARTIFACT}: hashes of files are not known"
    return f"{record.get('kind')} of step '{record.get('step')}' ({record.get('component')})"


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def _check_files(folder: Path, record: Mapping[str, Any] | None) -> Iterator[Finding]:
    if record is None:
        return
    listed = record.get("files")
    if not isinstance(listed, Mapping):
        yield Finding(ARTIFACT, "differs", f"lists no files; {_ADVICE}")
        return
    contents = contents_of(folder, leave=(ARTIFACT,))
    for name, entry in listed.items():
        yield _check_file(name, FileContent.from_plain(entry), contents.get(name))
    if record.get("kind") == "model":
        decisive = (path.relative_to(folder).as_posix() for path in hashed_files(folder))
        unlisted_names = [name for name in decisive if name not in listed]
        yield from (
            Finding(n, "extra", "is no part of the result; move it away") for n in unlisted_names
        )


def _check_file(name: str, recorded: FileContent | None, current: FileContent | None) -> Finding:
    if recorded is None:
        return Finding(name, "differs", f"{ARTIFACT} has no sound entry of it; {_ADVICE}")
    if current is None:
        return Finding(name, "missing", f"is missing; {_ADVICE}")
    if name in CHANGING and recorded.hash != current.hash:
        return Finding(name, "not seen", "was changed by hand, as it may be")
    return _compare_contents(name, recorded, current)


def _compare_contents(name: str, recorded: FileContent, current: FileContent) -> Finding:
    if recorded.hash == current.hash:
        count = f", {len(recorded.tensors)} tensors" if recorded.tensors else ""
        return Finding(name, "holds", human_size(current.size) + count)
    if recorded.size != current.size:
        less, words = (
            recorded.size - current.size,
            "fewer" if current.size < recorded.size else "more",
        )
        description = f"has {abs(less):,} bytes {words} than it was published with"
    else:
        description = "is not as it was published"
    return Finding(
        name, "differs", f"{description}{_describe_tensor_changes(recorded, current)}; {_ADVICE}"
    )


def _describe_tensor_changes(recorded: FileContent, current: FileContent) -> str:
    """Return a list, in words, of the tensors that differ; "" unless both files are sound weights."""
    if not recorded.tensors or not current.tensors:
        return ""
    before, after = recorded.tensors, current.tensors
    missing_names = [name for name in before if name not in after]
    changed_names = [name for name in before if after.get(name, before[name]) != before[name]]
    added_names = [name for name in after if name not in before]
    parts = [
        f"{join_some(names)} {words}"
        for names, words in (
            (changed_names, "changed"),
            (missing_names, "gone"),
            (added_names, "new"),
        )
        if names
    ]
    return f": {', '.join(parts)}" if parts else ": only its header changed, no tensor"


# ── weights ─────────────────────────────────────────────────────────────────────────────────────


def _read_headers(folder: Path) -> dict[str, dict[str, Any] | None]:
    """Return the provenance in each weight file's header, by the file's name; None if it has none."""
    headers: dict[str, dict[str, Any] | None] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            headers[name.as_posix()] = read_provenance(read_header(path)[1])
        except CheckpointError:
            headers[name.as_posix()] = None
    return headers


def _check_weights(folder: Path, headers: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about the weights: whether headers fit their files, and the index fits both."""
    if not headers:
        return
    findings = []
    for name in headers:
        try:
            specs = read_header(folder / name)[0].values()
        except CheckpointError as error:
            findings.append(Finding(name, "differs", str(error).removeprefix(f"{folder / name}: ")))
            continue
        size = (folder / name).stat().st_size
        end = max((s.offset + s.nbytes for s in specs), default=size)
        if end < size:
            words = f"has {size - end:,} bytes after its last tensor; {_ADVICE}"
            findings.append(Finding(name, "differs", words))
    yield from findings
    if findings or not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        return
    try:
        count = len(Checkpoint(folder).specs)
    except CheckpointError as error:
        yield Finding("weights", "differs", f"{error}; {_ADVICE}")
        return
    yield Finding("weights", "holds", f"{count} tensors, within their files and as indexed")


# ── provenance ────────────────────────────────────────────────────────────────────────────────


def _check_provenance(
    record: Mapping[str, Any] | None, headers: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield findings about provenance: whether headers have it, and are of one merge."""
    header_by_file = {name: header for name, header in headers.items() if header}
    details = (record or {}).get("details")
    is_merge = isinstance(details, Mapping) and "strategy" in details
    for name in headers if is_merge or header_by_file else ():
        if name not in header_by_file:
            words = "its header does not say how it was made: another tool has saved it again"
            yield Finding(f"header of {name}", "differs", f"{words}; {_ADVICE}")
    if not header_by_file:
        return
    first, header = next(iter(header_by_file.items()))
    for name, other_header in header_by_file.items():
        # A copied trunk keeps the header that describes how it was made; so does each module of the
        # folder.
        if other_header != header and Path(name).parent == Path(first).parent:
            words = (
                f"says something else than that of {first}: they come from two merges; {_ADVICE}"
            )
            yield Finding(f"header of {name}", "differs", words)
    yield Finding("header", "holds", _describe_merge(header))


def _describe_merge(header: Mapping[str, Any]) -> str:
    links = [
        next(iter(link)) if isinstance(link, Mapping) else link
        for link in header.get("strategy", ())
    ]
    models = header.get("models")
    count = count_noun(len(models) if isinstance(models, Mapping) else 1, "model")
    versions = header.get("versions")
    version_text = f", emberge {versions.get('emberge')}" if isinstance(versions, Mapping) else ""
    return f"{' → '.join(map(str, links))} of {count}, seed {header.get('seed')}{version_text}"
