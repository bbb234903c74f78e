"""The `publish` step: gathers a model's files for a hub, and uploads them on request."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import Artifact, Model, ModelRef, Preflight, Problem, Step, StepRef, Workspace
from emberge.wording import code_block, prose

TABLE = "published.md"
_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Publish(Step):
    """Publish a model on a hub with the card that the run wrote.

    Without `upload` the step only gathers the files; `emberge publish` then shows them, asks and uploads.
    With `upload` the model is uploaded when the step runs. Such a run needs `--allow-upload`, and is refused
    before any work without it. If a requirement of a step in `after` is not met, nothing is gathered or
    uploaded, the result says why, and the run ends with exit code 3.

    The result has `published.md`, a table of the files with their sizes.

    Example:
        soup:
          merge: {models: [./ft-legal, ./ft-faq], strategy: linear}
        scores:
          evaluate: {models: [$soup], evaluators: {mteb: {tasks: [STS12]}}}
        public:
          publish: {model: $soup, name: me/soup, licence: mit, after: $scores, upload: true}
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
    """The model's licence, by the hub's identifier; by default the one that its card states."""

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
        if self.upload and not _is_logged_in():
            fault = "nobody is logged in at the hub; run `hf auth login` before the step runs"
            yield context.warning(fault, "upload")

    def run(self, workspace: Workspace) -> Artifact:
        if unmet := list(self._list_unmet(workspace)):
            return self._refuse(workspace, unmet)
        from emberge_publish.prepare import prepare
        from emberge_publish.publication import Choices

        model = workspace.model(self.model)
        choices = Choices(
            name=self.name, private=self.private, replace=self.replace, licence=self.licence
        )
        publication = prepare(model.adapter or model.folder, choices)
        for note in publication.notes:
            workspace.warn(note)
        details: dict[str, Any] = {
            "name": self.name,
            "licence": publication.licence,
            "uploaded": False,
            "table": TABLE,
        }
        if self.upload:
            publication.repository.require_token()
            remote = publication.repository.read_state()
            planned = publication.planned(remote)
            lines = code_block("\n".join(publication.lines(planned, remote)), "text")
            publication.require_free(planned)
            workspace.progress(0, len(planned), "files")
            published = publication.upload(planned, remote)
            workspace.progress(len(planned), len(planned), "files")
            details |= {"uploaded": True, **dataclasses.asdict(published)}
        else:
            lines = [
                f"{prose(self.name)}: {len(publication.files)} files, "
                f"{prose(publication.licence_words)}",
                *("", *publication.table(), ""),
                "Nothing was uploaded. In this OUT, this shows the card; without `--dry-run` it asks, "
                "then uploads:",
                *("", *code_block(self._format_command(model, workspace), "bash")),
            ]
        return self._write_result(workspace, lines, details)

    def _format_command(self, model: Model, workspace: Workspace) -> str:
        """Return the command line that shows the upload of the model with the options of this step.

        Its paths are relative to the run's folder, which may be copied and be run in from any shell.
        """
        own = model.adapter or model.folder
        link = own.parent / model.name  # of a step's result: shorter, and still there later
        folder = link if link.is_dir() else own
        place = os.path.relpath(folder, workspace.store.parent)
        words = ["emberge", "publish", "--dry-run", place, self.name]
        words += ["--private"] * self.private + ["--replace"] * self.replace
        words += ["--licence", self.licence] if self.licence is not None else []
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
        return self._write_result(workspace, [f"- {prose(line)}" for line in lines], details)

    def _write_result(
        self, workspace: Workspace, lines: Sequence[str], details: dict[str, Any]
    ) -> Artifact:
        (workspace.folder / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return Artifact(kind="file", parents=(str(self.model),), details=details)


def _is_logged_in() -> bool:
    from huggingface_hub import get_token

    return bool(get_token())
