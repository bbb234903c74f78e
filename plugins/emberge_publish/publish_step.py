"""The `publish` step: gathers and checks a model's files for a hub, and uploads them on request."""

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

    The licence is the freest licence that the licences of all parents allow; a licence that a parent forbids
    is refused. The card names the model's ancestors, their training data, and the known test sets in that
    data. Without `upload` the step only gathers and checks the files; `emberge publish` then shows them, asks
    and uploads. With `upload` the model is uploaded when the step runs. Such a run needs `--allow-upload`,
    and is refused before any work without it.

    The result has `published.md`, a list of the files with their sizes. For a model of sentence embeddings it
    also has `mteb/`: an entry for mteb's register, and results on mteb's tasks in the layout of mteb's
    results repository.

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
    """The model's name on the hub, `owner/name`."""
    after: tuple[StepRef, ...] = ()
    """Steps to wait for: evaluations whose scores are published with the model, or a gate."""
    upload: bool = False
    """Upload when the step runs, which needs `emberge run --allow-upload`."""
    private: bool = False
    """Create a repository that only you and your team see."""
    replace: bool = False
    """Allow files in an existing repository of this name to be replaced."""
    licence: str | None = None
    """A licence that all parents allow; by default the freest of them."""
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
        if self.upload and not _is_logged_in():
            fault = "nobody is logged in at the hub; run `hf auth login` before the step runs"
            yield context.warning(fault, "upload")

    def _check_licences(self, context: Preflight) -> Iterator[Problem]:
        """Yield a problem of the licences of ancestors that are known before the run."""
        from emberge_publish.ancestors import expected_ancestors, skip_card
        from emberge_publish.hub_repository import card_on_hub
        from emberge_publish.licences import joint_terms

        try:
            ancestors = expected_ancestors(
                self.model, context, self.licences, card_on_hub if context.deep else skip_card
            )
        except CheckpointError as error:
            yield context.problem(str(error), "licences")
            return
        terms = joint_terms(ancestors.licences, self.licence)
        if ancestors.licences and terms.problem:
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
        publication = prepare(model.folder, choices, workspace.plugins, self.model.folder)
        for note in publication.notes:
            workspace.warn(note)
        details: dict[str, Any] = {
            "name": self.name,
            "licence": publication.terms.licence,
            "bases": publication.ancestors.bases,
            "uploaded": False,
            "table": TABLE,
        }
        commit = None
        upload = self.upload and workspace.rehearsal is None
        lines = [
            f"{self.name}: {len(publication.files)} files, licence {publication.terms.licence}"
        ]
        if upload:
            publication.repository.require_token()
            remote = publication.repository.read_state()
            planned = publication.planned(remote)
            lines = list(publication.lines(planned, remote))
            publication.require_free(planned)
            workspace.progress(0, len(planned), "files")
            published = publication.upload(planned, remote)
            workspace.progress(len(planned), len(planned), "files")
            commit = published.commit
            details |= {"uploaded": True, **dataclasses.asdict(published)}
        else:
            lines.append(
                f"not uploaded: `emberge publish` with this model's folder and {self.name} does it"
            )
        publication.write_board(workspace.folder / BOARD, commit)
        block = code_block("\n".join(lines), "text")
        (workspace.folder / TABLE).write_text("\n".join([*block, ""]), encoding="utf-8")
        record = json.dumps({**details, "files": sorted(publication.files)}, indent=1)
        (workspace.folder / RECORD).write_text(record + "\n", encoding="utf-8")
        return Artifact(kind="file", parents=(str(self.model),), details=details)


def _is_logged_in() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())
