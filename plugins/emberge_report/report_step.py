"""The `report` step: one page on the models of a run and their scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emberge import Artifact, ModelRef, Preflight, Problem, Step, StepRef, Workspace

PAGE_FILE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Report(Step):
    """Report on earlier steps as one self-contained HTML page, `report.html`.

    It shows the steps that were run, the scores of all models with their intervals, differences from the
    first scored model, the losses of trainings, the distance of each layer of every model from the base, and
    every warning. The page loads no other file, so it can be mailed, printed and kept. Curves are drawn with
    the extra `report`.

    `of` are the steps to report on: trainings, merges, scores. `base` is the model from which distances are
    measured; without it there are none.

    Example:
        scores:
          evaluate: {models: [./base, ./merged], evaluators: {mteb: {tasks: [STS12]}}}
        page:
          report: {of: $scores, title: What the merge gained}
    """

    produces = "report"

    of: tuple[StepRef, ...]
    title: str = "What was made"
    """Heading of the page."""
    base: ModelRef | None = None

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.of:
            yield context.problem("there is no step to report on", "of")
        if self.base is not None:
            context.model(self.base)

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_report.page import draw_page
        from emberge_report.report_data import gather_report

        report = gather_report(self.of, workspace, title=self.title, base=self.base)
        (workspace.folder / PAGE_FILE).write_text(draw_page(report), encoding="utf-8")
        stated = {"file": PAGE_FILE, "title": self.title, "steps": len(self.of)}
        return Artifact(
            kind="report", details={**stated, "models": [model.name for model in report.models]}
        )
