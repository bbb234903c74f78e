"""Domains of mteb's tasks: in domain are those whose source was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import DataEntry, DataError, DataRef, Preflight, Problem
from emberge.data import in_domain_tasks


@dataclass(frozen=True)
class Domains:
    """Tasks in domain: by name, and by training data whose catalogue names them."""

    named: tuple[str, ...] = ()
    data: tuple[DataEntry, ...] = ()

    @property
    def known(self) -> bool:
        """Flag that some tasks are known to be in domain, so that the others are out of domain."""
        return bool(self.named or self.data)

    def inside(self, resolve: Callable[[DataRef], Path | None]) -> set[str]:
        """Return names of the tasks that are in domain.

        Raises:
            DataError: when a catalogue cannot be read, or states no domains.
        """
        return {*self.named, *in_domain_tasks(self.data, resolve)}

    def check(self, context: Preflight) -> Iterator[Problem]:
        """Yield problems with names that mteb does not have."""
        from emberge_mteb.hub_tasks import unknown

        try:
            found = in_domain_tasks(self.data, context.data)
        except DataError as error:
            yield context.problem(str(error), "in_domain_of")
            return
        for option, names in (("in_domain", self.named), ("in_domain_of", found)):
            for name, hint in (unknown(names) if names else {}).items():
                yield context.problem(f"mteb has no task '{name}'{hint}", option)

    def show(self, names: Sequence[str], context: Preflight) -> None:
        """Show which of the tasks to be scored are in domain; `check` reports what cannot be read."""
        try:
            inside = [name for name in names if name in self.inside(context.data)]
        except DataError:
            return
        if self.known:
            counted = f"{len(inside)} of {len(names)} tasks are in domain"
            context.note("in domain", [f"{counted}: {', '.join(inside)}" if inside else counted])
