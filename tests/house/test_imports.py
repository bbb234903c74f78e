"""Imports point one way and in no circle, and go through faces, in the core, plugins, examples and tests.

Every import counts: at the top of a file, inside a function, and under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import emberge
import pytest

from tests.house.project import FACES, Rule, Source, findings, plugin_packages, sources
from tests.support.places import ROOT
from tests.support.sources import CORE, EXAMPLES, PLUGINS, TESTS

Found = Iterator[tuple[int, str]]
ARCHITECTURE = (ROOT / "docs/contributing/architecture.md").read_text("utf-8")


def table(first: str, second: str) -> dict[str, str]:
    """Return the rows of the table of the architecture that has these two columns."""
    _, rows = ARCHITECTURE.split(f"| {first} | {second} |\n|---|---|\n")
    lines = rows.partition("\n\n")[0].splitlines()
    return dict(line.strip("| ").split(" | ") for line in lines)


# These may be imported by every other room; of one another, each may import those before it.
NOUNS = re.findall(
    r"`(\w+)`", ARCHITECTURE.partition("may import those before it:\n")[2].partition(".\n")[0]
)
# What each other room of the core may import beyond them.
ROOMS = {
    name: "" if rooms == "nothing more" else rooms
    for name, rooms in table("room", "may import beyond them").items()
}
# Rooms of several floors: a module or folder imports those on its own line and on lines above it.
FLOORS = {
    name: {part: n for n, line in enumerate(order.split(", then ")) for part in line.split()}
    for name, order in table("room", "order").items()
}
# Faces of other plugins that a plugin may import.
PLUGIN_ROOMS = {
    f"emberge_{name}": {f"emberge_{other}" for other in others.split()}
    for name, others in table("plugin", "may import").items()
}
MODULES = {source.module: source for source in sources(CORE)}
PEERS = {"mteb": "emberge_mteb", "mergekit": "emberge_mergekit"}
# Words of everyday English, which an option or a message of the core may use, and a library.
EVERYDAY = {
    *("train", "merge", "evaluate", "report", "select", "group", "keep", "local", "mixed"),
    *("linear", "drop", "split", "publish", "sentence_transformers"),
}


def targets(source: Source, known: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and module of each import among the known; a name of a face counts as its module."""
    modules = set(known)
    for found in source.imports:
        face = FACES.get(found.module, {}) if found.module != "emberge" else {}
        named = {face.get(name, f"{found.module}.{name}") for name in found.names}
        if named & modules or found.module in modules:
            yield from ((found.line, name) for name in named & modules or {found.module})


def inside(source: Source) -> list[tuple[int, str]]:
    """Return the imports that a module of the core makes of others, each with its line."""
    return [(n, target) for n, target in targets(source, MODULES) if target != "emberge"]


def room(module: str, level: int = 1) -> str:
    """Return `merging` of `emberge.merging.request`, and at level 2 `request`."""
    parts = module.split(".")
    return parts[level] if len(parts) > level else ""


def allowed_in(name: str) -> set[str]:
    if name in NOUNS:
        return set(NOUNS[: NOUNS.index(name) + 1])
    return {name, *NOUNS, *ROOMS[name].split()}


def is_face(module: str) -> bool:
    """Return whether others may import from a module: a room of its own, not a part of one."""
    return module in FACES or (CORE / f"{room(module)}.py").is_file()


def other_rooms(source: Source) -> Found:
    if source.module != "emberge":
        allowed = allowed_in(room(source.module))
        yield from ((n, f"imports {one}") for n, one in inside(source) if room(one) not in allowed)


def floors_above(source: Source) -> Found:
    floor = FLOORS.get(name := room(source.module), {})
    for line, target in inside(source) if room(source.module, 2) else ():
        if (
            floor
            and room(target) == name
            and floor[room(target, 2)] > floor[room(source.module, 2)]
        ):
            yield line, f"imports {target}"


def names_of_the_facade(source: Source) -> Found:
    for found in source.imports if source.module != "emberge" else ():
        if found.module == "emberge":
            wrong = {n for n in found.names if f"emberge.{n}" not in MODULES} - {"__version__"}
            yield from ((found.line, f"takes {name} from emberge") for name in wrong)


def plugins_in_the_core(source: Source) -> Found:
    for found in source.imports:
        if found.module.startswith("emberge_"):
            yield found.line, f"imports {found.module}"


def past_the_face_of_a_room(source: Source) -> Found:
    for found in source.imports if source.module != "emberge" else ():
        elsewhere = room(found.module) not in (room(source.module), "cli")
        if found.module.startswith("emberge.") and elsewhere and not is_face(found.module):
            yield found.line, f"imports {found.module}"


def names_that_are_not_public(source: Source) -> Found:
    """Imports that a plugin may not make: names that are not public, and plugins that its table lacks."""
    own = "emberge_acme" if source.place.startswith("examples/") else source.module.split(".")[0]
    for found in source.imports:
        top = found.module.split(".")[0]
        is_other = top.startswith("emberge_") and top != own
        if is_other and (found.module != top or top not in PLUGIN_ROOMS.get(own, ())):
            yield found.line, f"imports {found.module}"
        if found.module in FACES:
            public = {*FACES[found.module], *(["testing"] if found.module == "emberge" else [])}
            for name in {*found.names} - public:
                yield found.line, f"takes {name}, which is no public name of {found.module}"
        elif found.module.startswith("emberge.") and not is_face(found.module):
            yield found.line, f"imports {found.module}; take public names from emberge or a face"


def peers_elsewhere(source: Source) -> Found:
    for found in source.imports:
        owner = PEERS.get(found.module.split(".")[0])
        if owner and owner != source.module.split(".")[0]:
            yield found.line, f"imports {found.module}; {owner} alone does"


@functools.cache
def component_names() -> set[str]:
    return {c.name for c in emberge.load_plugins(block=()).components} - EVERYDAY


def names_of_components(source: Source) -> Found:
    """Words of the core's code, beside documentation, that are names which only a plugin can know."""
    if room(source.module) in ("testing", "cli"):
        return
    docs = {
        id(node.value)
        for node in source.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in source.nodes:
        word = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(word, str) and word in component_names():
            yield node.lineno, f"knows '{word}'"


# Of tests.

# What tests may import from anywhere: what they share, and the programs that some of them are about.
SHARED = ("tests.support", "tests.reference", "tests.benchmarks", "tests.gpu")
# Places that attack a part, measure it or end it in the middle: they name what its users need not know.
INSIDE = ("benchmarks", "gpu", "hostile", "reference", "support")
BATCHES_OF_TRAINING = (
    "emberge.training.batch_loss emberge.training.batch_texts emberge.training.example_table"
)
# Tests of what two rooms do together.
TOGETHER = {
    "core/data/test_media_rows.py": "emberge_encoder.media.media_decoding",
    "core/encoding/test_cache_combinations.py": BATCHES_OF_TRAINING,
    "core/files/test_synced_renames.py": "emberge_evaluate.scoring",
    "core/training/loop/test_packing.py": "emberge.encoding.token_pass",
    "house/test_public_names.py": "emberge.options.component_pages",
    "merge_recipes/test_bidirlm_recipes.py": "emberge_mteb.hub_tasks",
    "merge_recipes/test_codiemb_paper.py": "emberge_mteb.hub_tasks",
    "plugins/codiemb/test_layer_softmax.py": "emberge.merging.statistics_file",
    "plugins/codiemb/test_ranking_losses.py": "emberge.numerics.score_tables",
    "plugins/merge/test_trim.py": "emberge.contracts.stage",
    "plugins/statistics/test_measure_statistics.py": "emberge.merging.statistics_file",
    "plugins/train/test_guides.py": BATCHES_OF_TRAINING,
    "plugins/train/test_loss_agreement.py": "emberge.numerics.score_tables",
    "plugins/train/test_mlm.py": "emberge.numerics.score_tables",
    "recipes_printed/test_boom.py": "emberge_mteb.hub_tasks",
    "recipes_printed/test_codiemb.py": "emberge_mteb.hub_tasks",
}


def other_tests(source: Source) -> Found:
    """Imports of another test, and of a module of another folder of tests that none share."""
    here = source.module.rpartition(".")[0]
    for found in source.imports:
        beside = found.module == here or found.module.startswith(f"{here}.")
        for name in found.names or ("",):
            whole = f"{found.module}.{name}"
            shared = beside or whole.startswith(SHARED)
            test = ".test_" in whole and not whole.startswith("tests.support.")
            if whole.startswith("tests.") and (test or not shared):
                yield found.line, f"imports {whole}; what tests share lives in tests/support"


def public_names_past_faces(source: Source) -> Found:
    """Public names that a test of another room takes from the module behind a room's face."""
    for found in source.imports:
        face = ".".join(found.module.split(".")[:2])
        if face in FACES and face not in (found.module, room_under_test(source)):
            for name in sorted({*found.names} & FACES[face].keys()):
                yield found.line, f"takes {name} from {found.module}, not from {face}"


def room_under_test(source: Source) -> str:
    """Return the room that a test is about: `emberge.merging` of `tests/core/merging/...`."""
    _, kind, name, *_ = (*source.place.removesuffix(".py").split("/"), "", "")
    return {"core": f"emberge.{name}", "plugins": f"emberge_{name}"}.get(kind, "")


def past_faces(source: Source) -> Found:
    """Yield the line and module of each import that a test makes from behind another room's face."""
    for found in source.imports:
        parts = found.module.split(".")
        face = ".".join(parts[:2]) if parts[0] == "emberge" else parts[0]
        known = face in FACES if len(parts) > 1 and parts[0] == "emberge" else face in PLUGIN_NAMES
        if known and found.module != face and face != room_under_test(source):
            yield found.line, found.module


def behind_faces(source: Source) -> Found:
    allowed = TOGETHER.get(source.place.removeprefix("tests/"), "").split()
    for line, module in past_faces(source):
        if module not in allowed:
            yield line, f"imports {module}"


PLUGIN_NAMES = {package.name for package in plugin_packages()}
OUTSIDE = [source for source in sources(TESTS) if source.place.split("/")[1] not in INSIDE]
RULES: dict[str, tuple[Rule, list[Source]]] = {
    "a room of the core imports what the plan allows": (other_rooms, sources(CORE)),
    "inside a room imports point up its list": (floors_above, sources(CORE)),
    "the core takes nothing from its facade": (names_of_the_facade, sources(CORE)),
    "the core imports no plugin": (plugins_in_the_core, sources(CORE)),
    "a room imports others by their faces": (past_the_face_of_a_room, sources(CORE)),
    "plugins import public names, and of each other what the plan allows": (
        names_that_are_not_public,
        sources(PLUGINS),
    ),
    "examples import public names alone": (names_that_are_not_public, sources(EXAMPLES)),
    "one plugin alone imports a peer": (peers_elsewhere, sources(CORE, PLUGINS)),
    "the core knows no method": (names_of_components, sources(CORE)),
    "what tests share lives in support": (other_tests, sources(TESTS)),
    "tests take public names from faces": (public_names_past_faces, sources(TESTS)),
    "tests go behind no face of another room": (behind_faces, OUTSIDE),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_file_keeps_the_rule(rule: str) -> None:
    found = findings(*RULES[rule])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "place", "line"),
    [
        (other_rooms, "core/emberge/files/new.py", "from emberge.merging import plan_merge"),
        (floors_above, "core/emberge/FLOOR.py", "from emberge.ABOVE import x"),
        (names_of_the_facade, "core/emberge/merging/new.py", "from emberge import Block"),
        (plugins_in_the_core, "core/emberge/merging/new.py", "import emberge_merge.methods"),
        (
            past_the_face_of_a_room,
            "core/emberge/merging/new.py",
            "from emberge.encoding.embedder import TextEmbedder",
        ),
        (names_that_are_not_public, "plugins/emberge_moe/new.py", "import emberge_merge"),
        (
            names_that_are_not_public,
            "examples/new.py",
            "from emberge.merging.request import MergeRequest",
        ),
        (peers_elsewhere, "plugins/emberge_moe/new.py", "from mteb.abstasks import AbsTask"),
        (names_of_components, "core/emberge/merging/new.py", "x = 'task_arithmetic'"),
        (other_tests, "tests/house/test_new.py", "from tests.core.test_seeds import seeds"),
        (other_tests, "tests/house/test_new.py", "from tests.plugins.boom.recipes import run"),
        (
            public_names_past_faces,
            "tests/core/data/test_new.py",
            "from emberge.merging.request import MergeRequest",
        ),
        (
            behind_faces,
            "tests/core/data/test_new.py",
            "from emberge.merging.streaming.jobs import CopyJob",
        ),
    ],
)
def test_the_rule_finds_a_planted_import(rule: Rule, place: str, line: str) -> None:
    if "FLOOR" in place:
        name, floor = next(iter(FLOORS.items()))
        lowest, highest = min(floor, key=floor.__getitem__), max(floor, key=floor.__getitem__)
        above = next(m for m in MODULES if room(m) == name and room(m, 2) == highest)
        place = place.replace("FLOOR", f"{name}/{lowest}")
        line = line.replace("emberge.ABOVE", above)
    allowed = "from tests.support import tiny\nfrom emberge.errors import EmbergeError\n"
    source = Source(place, f"{allowed if 'test' in place else ''}def f() -> None:\n    {line}\n")
    number = len(source.text.splitlines())
    assert [found.rpartition(": ")[0] for found in findings(rule, [source])] == [
        f"{place}:{number}"
    ]


def test_a_test_may_go_behind_the_face_of_its_own_room() -> None:
    for place, line in (
        ("tests/core/merging/test_x.py", "from emberge.merging.streaming.jobs import CopyJob"),
        ("tests/plugins/moe/test_x.py", "from emberge_moe.routed_encoder import RoutedEncoder"),
        ("tests/house/test_x.py", "from emberge.merging import plan_merge"),
    ):
        assert findings(behind_faces, [Source(place, line)]) == []


def test_every_exception_of_tests_is_still_one() -> None:
    needed = {s.place.removeprefix("tests/"): {m for _, m in past_faces(s)} for s in OUTSIDE}
    assert [
        (name, module)
        for name, modules in TOGETHER.items()
        for module in modules.split()
        if module not in needed.get(name, ())
    ] == []


def test_every_room_of_the_core_is_on_the_plan() -> None:
    assert {room(module) for module in MODULES} - {""} == {*NOUNS, *ROOMS}
    for name, floor in FLOORS.items():
        assert {room(m, 2) for m in MODULES if room(m) == name} - {""} == set(floor), name


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one circle of a graph, empty if it has none."""
    try:
        TopologicalSorter({node: set(others) for node, others in graph.items()}).prepare()
    except CycleError as error:
        return [str(node) for node in error.args[1]]
    return []


def grouped(modules: Mapping[str, Iterable[str]], level: int) -> dict[str, set[str]]:
    """Return a graph of modules as one of their rooms."""
    graph: dict[str, set[str]] = {}
    for module, others in modules.items():
        own = ".".join(module.split(".")[: level + 1])
        theirs = {".".join(other.split(".")[: level + 1]) for other in others}
        graph.setdefault(own, set()).update(theirs - {own})
    return graph


def modules_of(package: Iterable[Source]) -> dict[str, set[str]]:
    """Return the imports between the modules of a package."""
    files = {source.module: source for source in package}
    return {
        module: {target for _, target in targets(source, files)} - {module}
        for module, source in files.items()
    }


def test_the_core_has_no_circle() -> None:
    graph = {m: {t for _, t in inside(source)} for m, source in MODULES.items() if m != "emberge"}
    assert circle(grouped(graph, 1)) == []
    assert circle(graph) == []
    # A room's own modules stand beside its folders.
    assert circle(grouped({m: o for m, o in graph.items() if m.count(".") > 1}, 2)) == []


def test_plugins_have_no_circle() -> None:
    assert [found for p in plugin_packages() if (found := circle(modules_of(sources(p))))] == []


def test_a_circle_is_found_wherever_the_import_is() -> None:
    one = Source("plugins/ring/a.py", "def f() -> None:\n    from ring.b import g\n")
    two = Source("plugins/ring/b.py", "if TYPE_CHECKING:\n    from ring.a import f\n")
    assert set(circle(modules_of([one, two]))) == {"ring.a", "ring.b"}


def test_a_file_name_occurs_once_in_the_core() -> None:
    names = Counter(s.path.name for s in MODULES.values() if not s.path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
