"""Encoders of a model by the side of a text: one for all texts, or one each for queries and documents.

A Router of sentence-transformers has several encoders in one folder. `encode_query` and `encode_document`
choose theirs by name, and `encode` takes the default route.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emberge import Backbone, CheckpointError, Encoder, EncoderFacts, TaskInfo
from emberge.contracts import MediaKind, Side
from emberge.model_folder import read_routes
from emberge.wording import join_some

BackboneBySide = Mapping[Side | None, Backbone]
_SIDES: tuple[Side | None, ...] = ("query", "document", None)


_Value = TypeVar("_Value")


@dataclass(frozen=True)
class SideEncoders:
    """Loaded encoders of a model, each once, and the backbone that loads the encoder of each side.

    `media` are the kinds of media besides text that all encoders read.
    """

    chosen: BackboneBySide
    backbones: Sequence[Backbone]
    loaded: Sequence[Encoder]
    media: tuple[MediaKind, ...]

    @classmethod
    def load(cls, backbone: Backbone, folder: Path, **options: Any) -> SideEncoders:
        """Load the encoders of a folder; `options` are those of `Backbone.load`.

        Raises:
            CheckpointError: if an encoder cannot be loaded, or there is none for queries or documents.
        """
        facts = describe_model(backbone, folder)
        if facts.problems:
            raise CheckpointError("\n".join(facts.problems))
        chosen = choose_backbones(backbone, folder)
        backbones = list_distinct(chosen)
        loaded = [one.load(folder, **options) for one in backbones]
        return cls(chosen, backbones, loaded, facts.media)

    def by_side(self, values: Sequence[_Value]) -> dict[Side | None, _Value]:
        """Map each side to the value of its encoder; `values` are in the order of `loaded`."""
        return {side: values[self.backbones.index(one)] for side, one in self.chosen.items()}


def choose_backbones(backbone: Backbone, folder: Path) -> BackboneBySide:
    """Map each side that has an encoder of its own to its backbone; None stands for all other texts.

    Sides that share a route have equal backbones. A router without a default has nothing for None.

    Raises:
        CheckpointError: if the folder's router cannot be read, or it has no route for queries or documents.
    """
    routes = read_routes(folder)
    if routes is None:
        return {None: backbone}
    route_by_side = {side: routes.choose(side) for side in _SIDES}
    for side in _SIDES[:2]:
        if route_by_side[side] is None:
            raise CheckpointError(
                f"{folder}: has no route '{side}' and no default_route; use the folder of one of its encoders"
            )
    return {side: backbone.for_route(name) for side, name in route_by_side.items() if name}


def is_routed(folder: Path) -> bool:
    """Return whether a folder has several encoders; true also if its router cannot be read."""
    try:
        return read_routes(folder) is not None
    except CheckpointError:
        return True


def list_distinct(chosen: BackboneBySide) -> Sequence[Backbone]:
    """Return the backbones of a model, each once."""
    distinct: list[Backbone] = []
    for backbone in chosen.values():
        if backbone not in distinct:
            distinct.append(backbone)
    return distinct


def describe_model(backbone: Backbone, folder: Path) -> EncoderFacts:
    """Return the facts of all encoders of a model: their problems, common size, and media that all read."""
    try:
        backbones = list_distinct(choose_backbones(backbone, folder))
    except CheckpointError as error:
        return EncoderFacts(problems=(str(error),))
    facts = [one.describe(folder) for one in backbones]
    problems = dict.fromkeys(problem for one in facts for problem in one.problems)
    sizes = {one.dimension for one in facts if one.dimension is not None}
    if len(sizes) > 1:
        numbers = join_some([f"{size:,}" for size in sorted(sizes)])
        problems[
            f"{folder}: its routes give vectors of {numbers} numbers, which cannot be compared; pair models "
            "of one size"
        ] = None
    media = [kind for kind in facts[0].media if all(kind in one.media for one in facts)]
    return EncoderFacts(
        problems=tuple(problems),
        dimension=next(iter(sizes), None),
        untrained=tuple(dict.fromkeys(name for one in facts for name in one.untrained)),
        media=tuple(media),
    )


def describe_routes(folder: Path, unsided_tasks: Sequence[str]) -> str:
    """Return a line on which encoder embeds which texts, "" for a model with one encoder.

    `unsided_tasks` are the names of tasks without queries and documents.
    """
    routes = read_routes(folder)
    if routes is None:
        return ""
    line = f"queries by its route '{routes.choose('query')}', documents by '{routes.choose('document')}'"
    if not unsided_tasks:
        return line
    default = "no route, so refused" if routes.default is None else f"'{routes.default}'"
    return f"{line}; {join_some(unsided_tasks)}, without queries and documents, by {default}"


def find_tasks_without_sides(tasks: Sequence[TaskInfo]) -> list[str]:
    """Return the names of the distinct tasks whose texts are neither queries nor documents."""
    kind_by_name = {task.plain_name: task.kind for task in tasks}
    return [
        name for name, kind in kind_by_name.items() if not kind.endswith(("retrieval", "reranking"))
    ]
