"""The `publish` step: a model with all that is published beside it, checked, and uploaded where asked to."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
)
from emberge.wording import code_block

TABLE, RECORD, BOARD = "published.md", "published.json", "mteb"
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Publish(Step):
    """Publish a model on a hub, with its card, lineage, licence, and results for mteb's leaderboard.

    The licence is the freest one that those of all parents allow; what a parent forbids is refused. The card
    names the models that it goes back to, their training data, and the test sets among it that are known.
    Without `upload` the step only gathers and checks all this; `emberge publish` then shows it, asks and
    uploads. With it the model is uploaded when the step runs, in a run with `--allow-upload`; without that
    the run is refused before any work.

    The result has `published.md`, the files with their sizes, and for a model of sentence embeddings `mteb/`:
    an entry for mteb's register, and results on its tasks in the layout of its results repository.

    Example:
        soup:
          merge: {models: [./ft-legal, ./ft-faq], strategy: linear}
        scores:
          evaluate: {models: [$soup], evaluators: {mteb: {tasks: [STS12]}}}
        public:
          publish: {model: $soup, name: me/soup, after: $scores, upload: true}
    """

    produces = "file"

    model: ModelRef
    """The model to publish, a step's result or a merged model."""
    name: str
    """Its name on the hub, `owner/name`."""
    after: tuple[StepRef, ...] = ()
    """Steps to wait for: evaluations whose scores belong to it, or a gate."""
    upload: bool = False
    """Upload when the step runs, which needs `emberge run --allow-upload`."""
    private: bool = False
    """Create a repository that only you and your team see."""
    replace: bool = False
    """Replace what a repository of this name has."""
    licence: str | None = None
    """A licence that all parents allow, if not the freest."""
    licences: Mapping[str, str] = field(default_factory=dict)
    """Licences of parents whose cards state none, by the parents' names."""

    def uploads_to(self) -> Sequence[str]:
        return (self.name,) if self.upload else ()

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not _NAME.fullmatch(self.name):
            yield context.problem(f"'{self.name}' is no name on a hub; write owner/name", "name")
        if self.model.adapter is not None:
            fault = (
                f"{self.model}: publish the model and its adapter one by one, or merge them first"
            )
            yield context.problem(fault, "model")
        yield from self._check_licences(context)
        if self.upload and not _logged_in():
            fault = "nobody is logged in at the hub; run `hf auth login` before the step runs"
            yield context.warning(fault, "upload")

    def _check_licences(self, context: Preflight) -> Iterator[Problem]:
        """Yield what ancestors that can be seen before the run forbid or leave open."""
        from emberge_publish.ancestors import expected_ancestors
        from emberge_publish.hub_repository import card_on_hub
        from emberge_publish.licences import joint_terms

        try:
            found = expected_ancestors(
                self.model, context, self.licences, card_on_hub if context.deep else _no_card
            )
        except CheckpointError as error:
            yield context.problem(str(error), "licences")
            return
        terms = joint_terms(found.licences, self.licence)
        if found.licences and terms.problem:
            yield context.problem(terms.problem, "model")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_publish.prepare import prepare
        from emberge_publish.publication import Choices

        model = workspace.model(self.model)
        choices = Choices(
            name=self.name,
            private=self.private,
            replace=self.replace,
            licence=self.licence,
            licences=dict(self.licences),
        )
        found = prepare(model.folder, choices, workspace.plugins, self.model.folder)
        for note in found.notes:
            workspace.warn(note)
        details: dict[str, Any] = {
            "name": self.name,
            "licence": found.terms.licence,
            "bases": found.ancestors.bases,
            "uploaded": False,
            "table": TABLE,
        }
        commit = None
        upload = self.upload and workspace.rehearsal is None
        lines = [f"{self.name}: {len(found.files)} files, licence {found.terms.licence}"]
        if upload:
            found.repository.require_token()
            remote = found.repository.look()
            planned = found.planned(remote)
            lines = list(found.lines(planned, remote))
            found.require_free(planned)
            workspace.progress(0, len(planned), "files")
            done = found.upload(planned, remote)
            workspace.progress(len(planned), len(planned), "files")
            commit = done.commit
            details |= {"uploaded": True, **dataclasses.asdict(done)}
        else:
            lines.append(
                f"not uploaded: `emberge publish` with this model's folder and {self.name} does it"
            )
        found.write_board(workspace.folder / BOARD, commit)
        block = code_block("\n".join(lines), "text")
        (workspace.folder / TABLE).write_text("\n".join([*block, ""]), encoding="utf-8")
        record = json.dumps({**details, "files": sorted(found.files)}, indent=1)
        (workspace.folder / RECORD).write_text(record + "\n", encoding="utf-8")
        return Artifact(kind="file", parents=(str(self.model),), details=details)


def _no_card(name: str, revision: str | None) -> None:
    """Return no card: of a model on a hub, without a network."""


def _logged_in() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())
