"""Reports and model cards of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import hookimpl, make_hook

if TYPE_CHECKING:
    from emberge.contracts import Event

register_steps = make_hook(report="emberge_report.report_step:Report")


@hookimpl
def hear_event(event: Event) -> None:
    """Write the card of a new model, or of a base with adapters, with the section that the step left."""
    from emberge.contracts import StepFilled

    if isinstance(event, StepFilled) and (event.artifact.kind == "model" or event.artifact.base):
        from emberge.files import write_text
        from emberge.results import OutFolder

        from emberge_report.card import write_card

        record = {**event.provenance, "component": event.provenance.get("kind")}
        link = OutFolder(event.out).locate_link(event.step)
        card = write_card(link, event.folder, event.artifact, record, event.origin)
        path = event.folder / "README.md"
        if path.is_file():
            from emberge_report.card_scores import insert_section

            card = insert_section(card, path.read_text("utf-8"))
        write_text(path, card, durable=False)
