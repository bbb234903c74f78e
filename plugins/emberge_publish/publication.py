"""Publication of a model: the files that its repository will have, the facts behind them, and the upload."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from emberge import CheckpointError, EmbergeError, Plugins, RecipeError
from emberge.engine import (
    HashCache,
    join_some,
    model_fingerprint,
    published_files,
    read_artifact,
    read_scores,
    results_in,
    safe_file_name,
)

from emberge_publish.ancestors import Ancestors, find_ancestors, is_of_hub
from emberge_publish.hub_repository import (
    Content,
    HubError,
    Remote,
    RemoteFile,
    Repository,
    card_on_hub,
    no_token,
)
from emberge_publish.licences import Terms, joint_terms
from emberge_publish.published_card import overlap_of, published_card

__all__ = ["Choices", "Planned", "Publication", "Published", "prepare"]

CARD = "README.md"
# Files that hubs write into a repository themselves.
_OF_THE_HUB = (".gitattributes",)
# Text files up to this size are looked through for tokens.
_LOOKED_THROUGH = 16 * 2**20
State = Literal["new", "changed", "same", "removed"]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices of the publisher; `licences` are those of ancestors whose cards state none, or another."""

    name: str
    private: bool = False
    replace: bool = False
    licence: str | None = None
    licences: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """File of the repository: its path, its bytes, and how it compares with what is there."""

    path: str
    size: int
    state: State


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of an upload: the commit, the page, and the number of files sent and their bytes."""

    commit: str
    url: str
    files: int
    size: int


@dataclass(frozen=True)
class Publication:
    """Model that is ready to be published: its files, licence, ancestors and scores, and its place on a hub.

    `board` are the facts for a leaderboard, `notes` what the publisher should know.
    """

    choices: Choices
    repository: Repository
    folder: Path
    files: Mapping[str, Content]
    terms: Terms
    ancestors: Ancestors
    board: Mapping[str, Any]
    notes: Sequence[str]
    plugins: Plugins

    def planned(self, remote: Remote) -> list[Planned]:
        """Return every file with its state beside what the repository has."""
        found = [_planned(path, content, remote) for path, content in self.files.items()]
        left = [path for path in remote.files if path not in self.files and path not in _OF_THE_HUB]
        return found + [Planned(path, remote.files[path].size, "removed") for path in left]

    def lines(self, planned: Sequence[Planned], remote: Remote) -> Iterator[str]:
        """Yield what would be uploaded, for the terminal."""
        seen = "private" if self.choices.private else "public"
        where = "is there" if remote.commit else f"will be created, {seen}"
        yield f"{self.repository.url} ({where}), licence {self.terms.licence}"
        width = max(len(one.path) for one in planned)
        for one in planned:
            yield f"  {one.path:<{width}}  {_shown(one.size):>9}  {one.state}"
        sent = [one for one in planned if one.state in ("new", "changed")]
        yield f"{len(sent)} of {len(planned)} files to send, {_shown(sum(o.size for o in sent))}"
        yield from (f"note: {note}" for note in self.notes)

    def require_free(self, planned: Sequence[Planned]) -> None:
        """Make sure that no content of others is lost unasked.

        Raises:
            RecipeError: where the repository has other content and `replace` was not chosen.
        """
        lost = [one.path for one in planned if one.state in ("changed", "removed")]
        if lost and not self.choices.replace:
            raise RecipeError(
                f"{self.choices.name}: the repository has other content already ({join_some(lost, 4)}); "
                "choose another name, or give --replace, after which it has exactly the files above (its "
                "history keeps the others)"
            )

    def upload(self, planned: Sequence[Planned], remote: Remote) -> Published:
        """Upload what differs, in one commit, and read back that the hub has it all.

        Raises:
            HubError: when the hub refuses, fails, or has other bytes afterwards.
        """
        if remote.commit is None:
            remote = self.repository.create(self.choices.private)
            planned = self.planned(remote)
            self.require_free(planned)
        new = [one for one in planned if one.state in ("new", "changed")]
        removed = [one.path for one in planned if one.state == "removed"]
        commit = remote.commit or ""
        if new or removed:
            sent = {one.path: self.files[one.path] for one in new}
            commit = self.repository.commit(sent, removed, commit)
        self._require_there(commit)
        return Published(commit, self.repository.url, len(new), sum(one.size for one in new))

    def _require_there(self, commit: str) -> None:
        there = self.repository.look(commit)
        wrong = [one.path for one in self.planned(there) if one.state != "same"]
        if wrong:
            raise HubError(
                f"{self.choices.name}: at commit {commit[:12]} the hub has other bytes of "
                f"{join_some(wrong, 4)}; run this again with --replace"
            )

    def write_board(self, out: Path, commit: str | None) -> list[str]:
        """Write the leaderboard's entry of the model into a folder and return its files."""
        out.mkdir(parents=True, exist_ok=True)
        facts = {**self.board, "revision": commit}
        written = self.plugins.hook.write_board(out=out, model=self.folder, facts=facts)
        return list(written or ())


def prepare(folder: Path, choices: Choices, plugins: Plugins, origin: Path) -> Publication:
    """Gather what is published of the model that a step left in `folder`, and check it; nothing is uploaded.

    `origin` is the folder that relative paths of its recipe start at.

    Raises:
        CheckpointError: for a folder that is no model, ancestors of unknown licence, licences that forbid it,
            and facts that the leaderboard refuses.
        RecipeError: for a name that is none.
        EmbergeError: for a file with a token in it.
    """
    repository = Repository(choices.name)
    result = folder.absolute()
    _require_model(result)
    ancestors = find_ancestors(result, origin, choices.licences, card_on_hub)
    terms = joint_terms(ancestors.licences, choices.licence)
    if terms.licence is None:
        raise CheckpointError(f"{folder}: {terms.problem}")
    tasks = {one.name: _trained_on(one.bases, plugins) for one in ancestors.models}
    results = _results(result)
    card = result / CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    scored = [path.stem for path in results]
    files: dict[str, Content] = {
        path.relative_to(result).as_posix(): path for path in published_files(result)
    }
    whole = published_card(text, choices.name, ancestors, terms, tasks, scored)
    files[CARD] = whole.encode()
    _require_no_token(files)
    found = Publication(
        choices,
        repository,
        result,
        dict(sorted(files.items())),
        terms,
        ancestors,
        _board(result, repository, ancestors, terms, tasks, results, plugins),
        tuple(_notes(ancestors, tasks, scored)),
        plugins,
    )
    if (result / "modules.json").is_file():
        with tempfile.TemporaryDirectory(prefix="emberge-publish-") as place:
            found.write_board(Path(place), None)
    return found


def _require_model(folder: Path) -> None:
    signs = ("modules.json", "config.json", "adapter_config.json")
    if not any((folder / sign).is_file() for sign in signs):
        raise CheckpointError(
            f"{folder}: is no model: it has neither modules.json nor config.json; name the folder of one"
        )


def _trained_on(bases: Sequence[str], plugins: Plugins) -> frozenset[str] | None:
    """Return the test sets that any of a model's bases is known to have been trained on, None if unknown."""
    found = [plugins.hook.tasks_trained_on(model=base) for base in bases]
    known = [one for one in found if one is not None]
    return frozenset().union(*known) if known else None


def _results(folder: Path) -> list[Path]:
    """Return the files with results of exactly these weights, of evaluations in the same OUT."""
    content, found = None, dict[str, Path]()
    for place in results_in(folder.parent):
        artifact = read_artifact(place)
        if artifact is None or artifact.kind != "scores":
            continue
        content = content or model_fingerprint(folder.resolve(), HashCache(None))
        for name, fingerprint in read_scores(place).fingerprints.items():
            if fingerprint == content:
                inside = place / "results" / safe_file_name(name)
                found |= {path.stem: path for path in sorted(inside.glob("*.json"))}
    return list(found.values())


def _board(
    folder: Path,
    repository: Repository,
    ancestors: Ancestors,
    terms: Terms,
    tasks: Mapping[str, frozenset[str] | None],
    results: Sequence[Path],
    plugins: Plugins,
) -> dict[str, Any]:
    known = [one for one in tasks.values() if one is not None]
    whole = len(known) == len(tasks) and all(is_of_hub(one) for one in ancestors.models)
    whole = (
        whole and not ancestors.data
    )  # of a set of one's own nobody's register knows the sources
    backbone = plugins.find("text_encoder", "backbone").type()
    return {
        "name": repository.name,
        "date": datetime.now(UTC).date().isoformat(),
        "licence": terms.licence,
        "languages": ancestors.languages,
        "bases": ancestors.bases,
        "dimension": None if backbone.check(folder) else backbone.dimension(folder),
        "reference": repository.url,
        "trained_on": sorted(frozenset().union(*known)) if whole else None,
        "results": list(results),
    }


def _notes(
    ancestors: Ancestors,
    tasks: Mapping[str, frozenset[str] | None],
    scored: Sequence[str],
) -> Iterator[str]:
    for one in ancestors.data:
        terms = (one.licence or "").lower().split("-")
        if "nc" in terms or "nd" in terms:
            yield (
                f"the data '{one.name}' is under {one.licence}; whether that binds a model trained on it is "
                "for you to judge"
            )
    unknown = [one.name for one in ancestors.models if not one.datasets and not tasks[one.name]]
    if unknown:
        yield f"training data unknown: {join_some(unknown, 6)}; the card says so"
    placed = [one.name for one in ancestors.models if one.name.startswith(("/", "~"))]
    if placed:
        yield (
            f"artifact.json and the card name folders of this machine ({join_some(placed, 3)}); name them "
            "relative to the recipe if nobody should know"
        )
    both = overlap_of(tasks, scored)
    if both:
        yield f"scored on tasks that an ancestor was trained on: {join_some(list(both), 6)}"


def _require_no_token(files: Mapping[str, Content]) -> None:
    """Look through all text for tokens.

    Raises:
        EmbergeError: naming the file.
    """
    for path, content in files.items():
        if isinstance(content, Path):
            if content.suffix == ".safetensors" or content.stat().st_size > _LOOKED_THROUGH:
                continue
            content = content.read_bytes()
        text = content.decode("utf-8", errors="ignore")
        if no_token(text) != text:
            raise EmbergeError(f"{path}: has a hub's token in it; take it out, and revoke it")


def _planned(path: str, content: Content, remote: Remote) -> Planned:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    there = remote.files.get(path)
    if there is None:
        return Planned(path, size, "new")
    same = there.size == size and _is_same(content, size, there)
    return Planned(path, size, "same" if same else "changed")


def _is_same(content: Content, size: int, there: RemoteFile) -> bool:
    """Compare by the hash that the hub has: of the bytes for a large file, git's for others."""
    large = there.sha256 is not None
    digest = hashlib.sha256() if large else hashlib.sha1(usedforsecurity=False)
    if not large:
        digest.update(f"blob {size}\0".encode())
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest() == (there.sha256 or there.blob)


def _shown(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
