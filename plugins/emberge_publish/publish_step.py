"""The `publish` step: gathers and checks a model's files for a hub, and uploads them on request."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    CheckpointError,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    StepRef,
    Workspace,
)
from emberge.wording import code_block, prose

TABLE, RECORD, BOARD = "published.md", "published.json", "mteb"
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Publish(Step):
    """Publish a model on a hub, with its card, lineage, licence, and results for mteb's leaderboard.

    The licence is the freest licence that the licences of all parents allow; a licence that a parent forbids
    is refused. The card names the model's ancestors, their training data, and the known test sets in that
    data. `training_data.md` is a summary of the training data in the layout that the EU asks of providers of
    general-purpose AI models. Without `upload` the step only gathers and checks the files; `emberge publish`
    then shows them, asks and uploads. With `upload` the model is uploaded when the step runs. Such a run
    needs `--allow-upload`, and is refused before any work without it. If a requirement of a step in `after`
    is not met, nothing is gathered or uploaded, the result says why, and the run ends with exit code 3.

    The result has `published.md`, a table of the files with their sizes. For a model of sentence embeddings
    it also has `mteb/`: an entry for mteb's register, and results on mteb's tasks in the layout of mteb's
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
    """Steps to wait for, such as evaluations whose scores are published with the model. If a requirement of
    one is not met, the model is not published."""
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
    statements: Mapping[str, str] = field(default_factory=dict)
    """Your statements in the summary of training data, by section numbers: `{"1.1": "Acme, Berlin"}`."""

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
        yield from self._check_statements(context)
        if self.upload and not _is_logged_in():
            fault = "nobody is logged in at the hub; run `hf auth login` before the step runs"
            yield context.warning(fault, "upload")

    def _check_statements(self, context: Preflight) -> Iterator[Problem]:
        from emberge_publish.training_summary import list_statement_faults

        for fault in list_statement_faults(self.statements):
            yield context.problem(fault, "statements")

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
        if unmet := list(self._list_unmet(workspace)):
            return self._refuse(workspace, unmet)
        from emberge_publish.prepare import prepare
        from emberge_publish.publication import Choices

        model = workspace.model(self.model)
        choices = Choices(
            name=self.name,
            private=self.private,
            replace=self.replace,
            licence=self.licence,
            licences=dict(self.licences),
            statements=dict(self.statements),
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
        if self.upload:
            publication.repository.require_token()
            remote = publication.repository.read_state()
            planned = publication.planned(remote)
            block = code_block("\n".join(publication.lines(planned, remote)), "text")
            publication.require_free(planned)
            workspace.progress(0, len(planned), "files")
            published = publication.upload(planned, remote)
            workspace.progress(len(planned), len(planned), "files")
            commit = published.commit
            details |= {"uploaded": True, **dataclasses.asdict(published)}
            text = "\n".join(block)
        else:
            command = self._format_command(model, workspace.store.parent)
            text = "\n".join(
                [
                    f"{prose(self.name)}: {len(publication.files)} files, licence "
                    f"{prose(publication.terms.licence or 'unknown')}",
                    *("", *publication.table(), ""),
                    "Nothing was uploaded. In this OUT, this shows the card; without `--dry-run` it asks, "
                    "then uploads:",
                    *("", *code_block(command, "bash")),
                ]
            )
        publication.write_board(workspace.folder / BOARD, commit)
        self._write_result(workspace, text, {**details, "files": sorted(publication.files)})
        return Artifact(kind="file", parents=(str(self.model),), details=details)

    def _format_command(self, model: Model, out: Path) -> str:
        """Return the command line that shows the upload of the model with the options of this step.

        Its paths are relative to the run's folder `out`, which may be copied and be run in from any shell.
        """
        link = (
            model.folder.parent / model.name
        )  # of a step's result: shorter, and still there later
        folder = link if link.is_dir() else model.folder
        origin = os.path.relpath(self.model.folder, out)
        words = ["emberge", "publish", "--dry-run", os.path.relpath(folder, out), self.name]
        words += ["--private"] * self.private + ["--replace"] * self.replace
        words += ["--licence", self.licence] if self.licence is not None else []
        for name, licence in self.licences.items():
            words += ["--licence-of", f"{name}={licence}"]
        for section, text in self.statements.items():
            words += ["--state", f"{section}={text}"]
        words += ["--inputs", origin] if origin != os.curdir else []
        return shlex.join(words)

    def _list_unmet(self, workspace: Workspace) -> Iterator[str]:
        """Yield each requirement that a step of `after` did not meet, with the step's name."""
        for reference in self.after:
            _, artifact = workspace.artifact(reference)
            for requirement in artifact.details.get("unmet", ()):
                yield f"{reference.step}: not met: {requirement}"

    def _refuse(self, workspace: Workspace, unmet: Sequence[str]) -> Artifact:
        """Write a result without files that names the unmet requirements, and return its artifact."""
        lines = [f"not published: {requirement}" for requirement in unmet]
        for line in lines:
            workspace.warn(line)
        # Not `unmet`: the run would count these requirements, which other steps have failed, twice.
        details = {"name": self.name, "uploaded": False, "not_met": list(unmet), "table": TABLE}
        self._write_result(workspace, "\n".join(f"- {prose(line)}" for line in lines), details)
        return Artifact(kind="file", parents=(str(self.model),), details=details)

    def _write_result(self, workspace: Workspace, text: str, record: Mapping[str, Any]) -> None:
        (workspace.folder / TABLE).write_text(f"{text}\n", encoding="utf-8")
        record_text = json.dumps(record, indent=1)
        (workspace.folder / RECORD).write_text(record_text + "\n", encoding="utf-8")


def _is_logged_in() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())
