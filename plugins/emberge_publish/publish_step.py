"""The `publish` step: uploads a model with its card to a hub, or puts adapters into one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from emberge import Artifact, ModelRef, Preflight, Problem, Step, StepRef, Workspace
from emberge.wording import to_markdown
from emberge_report import write_code_block

TABLE = "published.md"


@dataclass(frozen=True, kw_only=True)
class Publish(Step):
    """Publish a model on a hub with the card that the run wrote, or several adapters of one base.

    The model is uploaded when the step runs. Such a run needs `--allow-upload`, and is refused before any
    work without it. If a requirement of a step in `after` is not met, nothing is uploaded, the result says
    why, and the run ends with exit code 3. The result has `published.md`, the list of the files with their
    sizes.

    With `adapters`, nothing is uploaded: the result is a folder for `emberge publish`, with the base, each
    adapter in `adapters/NAME`, and a card with the lines that load them and the tables of the evaluations.

    Example:
        soup:
          merge: {models: [./ft-legal, ./ft-faq], strategy: linear}
        scores:
          evaluate: {models: [$soup], evaluators: {mteb: {tasks: [STS12]}}}
        public:
          publish: {model: $soup, name: me/soup, licence: mit, after: $scores}
    """

    produces = "file"

    model: ModelRef | None = None
    """The model to publish, a step's result or a merged model."""
    adapters: dict[str, ModelRef] = field(default_factory=dict)
    """Adapters of one base in place of a model, by the names that `set_adapter` takes; `name`, `private`,
    `replace` and `licence` are then options of `emberge publish`."""
    name: str = ""
    """The model's name on the hub, `owner/name`."""
    after: tuple[StepRef, ...] = ()
    """Steps to wait for, such as evaluations whose scores are published with the model. If a requirement of
    one is not met, the model is not published."""
    private: bool = False
    """Create a repository that only you and your team see."""
    replace: bool = False
    """Allow files in an existing repository of this name to be replaced."""
    licence: str | None = None
    """The model's licence, by the hub's identifier; by default the one that its card states."""

    def __post_init__(self) -> None:
        for option in ("name", "private", "replace", "licence"):
            if self.adapters and getattr(self, option):
                flag = {"name": "", "licence": " --licence …"}.get(option, f" --{option}")
                raise ValueError(
                    f"'{option}' has no effect with 'adapters', which are not uploaded; give it to "
                    f"`emberge publish DIR OWNER/NAME{flag}`"
                )
        if bool(self.model) == bool(self.adapters) or bool(self.model) != bool(self.name):
            raise ValueError("give a 'model' and its 'name' on the hub, or 'adapters'")

    def list_upload_places(self) -> Sequence[str]:
        return (self.name,) if self.name else ()

    def check(self, context: Preflight) -> Iterator[Problem]:
        if self.model is None:
            from emberge_publish.adapters_folder import check_adapters

            yield from check_adapters(self.adapters, context)
            return
        from emberge.model_folder import HUB_ID
        from huggingface_hub import get_token

        if not HUB_ID.fullmatch(self.name):
            yield context.problem(f"'{self.name}' is no name on a hub; write owner/name", "name")
        if self.model.adapter is not None:
            text = (
                f"{self.model}: publish the model and its adapter one by one, or merge them first"
            )
            yield context.problem(text, "model")
        if not get_token():
            text = "nobody is logged in at the hub; run `hf auth login` before the step runs"
            yield context.warning(text)

    def run(self, workspace: Workspace) -> Artifact:
        if unmet := list(self._list_unmet(workspace)):
            return self._refuse(workspace, unmet)
        if self.model is None:
            from emberge_publish.adapters_folder import write_adapters_folder

            return write_adapters_folder(self.adapters, self.after, workspace)
        from emberge_publish.prepare import prepare_publication
        from emberge_publish.publication import PublishOptions

        model = workspace.model(self.model)
        options = PublishOptions(
            name=self.name, private=self.private, replace=self.replace, licence=self.licence
        )
        publication = prepare_publication(model.adapter or model.folder, options)
        for note in publication.notes:
            workspace.warn(note)
        repository = publication.read_repository()
        lines = write_code_block("\n".join(publication.list_lines(repository)), "text")
        publication.require_free(repository)
        workspace.progress(0, len(publication.files), "files")
        published = publication.upload(repository)
        workspace.progress(len(publication.files), len(publication.files), "files")
        details = {
            "name": self.name,
            "licence": publication.licence,
            "uploaded": True,
            **dataclasses.asdict(published),
        }
        return self._write_result(workspace, lines, details)

    def _list_unmet(self, workspace: Workspace) -> Iterator[str]:
        """Yield each requirement that a step of `after` did not meet, with the step's name."""
        for reference in self.after:
            _, artifact = workspace.artifact(reference)
            for requirement in artifact.unmet:
                yield f"{reference.step}: not met: {requirement}"

    def _refuse(self, workspace: Workspace, unmet: Sequence[str]) -> Artifact:
        """Write a result without files that names the unmet requirements, and return its artifact."""
        lines = [f"not published: {requirement}" for requirement in unmet]
        for line in lines:
            workspace.warn(line)
        # Not `unmet`: the run would count these requirements, which other steps have failed, twice.
        details = {"name": self.name, "uploaded": False, "not_met": list(unmet)}
        lines = [f"- {to_markdown(line)}" for line in lines]
        return replace(self._write_result(workspace, lines, details), note="nothing was published")

    def _write_result(
        self, workspace: Workspace, lines: Sequence[str], details: dict[str, Any]
    ) -> Artifact:
        (workspace.folder / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        parents = tuple(map(str, filter(None, (self.model, *self.adapters.values()))))
        return Artifact(kind="file", parents=parents, details=details, table=TABLE)
