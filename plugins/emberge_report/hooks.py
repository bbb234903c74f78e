"""Reports and model cards of a run."""

from __future__ import annotations

from emberge import hookimpl, make_hook
from emberge.contracts import Event, StepFilled

register_steps = make_hook(report="emberge_report.report_step:Report")


@hookimpl
def hear_event(event: Event) -> None:
    """Write the card of a new model."""
    if isinstance(event, StepFilled) and event.artifact.kind == "model":
        from emberge.files import write_text
        from emberge.results import OutFolder

        from emberge_report.card import write_card

        record = {**event.provenance, "component": event.provenance.get("kind")}
        link = OutFolder(event.out).link(event.step)
        card = write_card(link, event.folder, event.artifact, record, event.origin)
        write_text(event.folder / "README.md", card, durable=False)
