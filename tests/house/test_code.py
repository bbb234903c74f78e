"""Habits that a reader counts on: names, docstrings, one place for each thing, tests that assert."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.project import Rule, Source, dotted, findings, sources
from tests.support.places import ROOT
from tests.support.sources import CORE, EXAMPLES, PLUGINS, TESTS

Found = Iterator[tuple[int, str]]

# Names and words.

VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
# Words that no docstring begins with: they leave open what comes back.
OPENINGS = re.compile(r"(What|Whether|Where|Which|How|Who|Something|Everything|Somebody|Nobody)\b")


def vague_names(source: Source) -> Found:
    for part in source.place.removesuffix(".py").split("/"):
        if set(part.split("_")) & VAGUE:
            yield 1, f"{part} is a vague name"


def vague_docstrings(source: Source) -> Found:
    for line, text in source.docstrings():
        if OPENINGS.match(text.strip()):
            yield line, text.strip().splitlines()[0]


def silent_modules(source: Source) -> Found:
    doc = ast.get_docstring(source.tree) or ""
    if not doc or (source.place.endswith("/__init__.py") and len(doc.split()) < 4):
        yield 1, "does not say what lives there"


# One module makes optimizers, one steps them, one room runs forward passes.

MAKES_OPTIMIZERS = "core/emberge/training/loop/optimizer.py"
STEPS_OPTIMIZERS = "core/emberge/training/loop/trainer.py"
RUNS_MODELS = "core/emberge/encoding/"
# Calls elsewhere that are no forward passes, or of what is no encoder of ours.
PASSES_ELSEWHERE = {
    "core/emberge/ranks/fsdp.py": "finds the modules that a pass calls; ranks are below encoding",
    "core/emberge/testing/backbones.py": "compares with the library that a saved folder is for",
    "plugins/emberge_encoder/text/blocks.py": "asks a bare model of transformers which way it attends",
    "plugins/emberge_encoder/text/packed_rows.py": "part of an encoder: its call of transformers' model",
    "plugins/emberge_encoder/text/text_model.py": "part of an encoder: its call of transformers' model",
    "plugins/emberge_encoder/text/token_head.py": "tries whether a bare model's head is whole",
    "plugins/emberge_moe/routed_encoder.py": "an encoder around another, whose calls are the other's",
}
METHODS = {*("_call_impl", "encode_document", "encode_query", "states"), "states_and_auxiliary"}
ENCODERS = {"encoder", "_encoder"}
# What a library's model is called with.
LIBRARY_METHODS = {"encode", "predict"}
FEATURES = {"features", "inputs"}


def optimizers_made(source: Source) -> Found:
    for one in source.imports:
        if one.module.startswith("torch.optim") or (one.module == "torch" and "optim" in one.names):
            yield one.line, "imports optimizers"
    yield from ((n.lineno, name) for name, n in source.calls if name.startswith("torch.optim."))


def optimizers_stepped(source: Source) -> Found:
    for name, node in source.calls:
        *_, receiver, method = "", *name.split(".")
        if method == "step" and "optim" in receiver:
            yield node.lineno, name


def runs_model(function: str, node: ast.Call) -> bool:
    name = function.rpartition(".")[2]
    words = {keyword.arg for keyword in node.keywords}
    if isinstance(node.func, ast.Attribute) and name in METHODS:
        return True
    if name in LIBRARY_METHODS and "show_progress_bar" in words:
        return True
    unpacked = {getattr(k.value, "id", "") for k in node.keywords if k.arg is None}
    features = unpacked & FEATURES or "input_ids" in words
    return bool(features) or name in ENCODERS or name == "functional_call"


def forward_passes(source: Source) -> Found:
    for name, node in source.calls:
        if runs_model(name, node):
            yield (
                node.lineno,
                f"{name}; take compute_token_states, forward or TextEmbedder of encoding",
            )


# What creates or changes a file in place, appends, links or locks does so through the room of files. Its
# files are complete or absent after a kill or a power cut. New files in a step's own folders, which are
# published as a whole, may be written plainly (`Path.write_text`, `np.save`, `save_file`).

MODE = re.compile(r"[rwabtx+]{1,3}")
# Calls for which the room of files has a function.
INSTEAD = {
    **dict.fromkeys(("open", "os.open", "mktemp", "NamedTemporaryFile"), "replace_file"),
    **dict.fromkeys(("flock", "lockf"), "FileLock or working_in"),
    **dict.fromkeys(("symlink_to", "symlink"), "replace_link"),
    **dict.fromkeys(("hardlink_to", "os.link"), "link_or_copy"),
}
# Files that write by themselves: new files in a folder that they, or their step, have just made, ...
NEW_FILES = {
    "core/emberge/data/dataset_store.py",
    "plugins/emberge_data/written_sets.py",
    "core/emberge/encoding/token_files.py",
    "plugins/emberge_local/local.py",  # of a random name, in a work folder
    "core/emberge/tensor_files/safetensors_header.py",  # of a random name, to be checked
    "core/emberge/tensor_files/server_file.py",
    # ... and in place or at the end of a file, in a folder that is locked.
    "core/emberge/merging/streaming/journal.py",
    "core/emberge/recipes/run/run_log.py",
    "core/emberge/tensor_files/write_queue.py",
}


def opens_to_write(call: ast.Call) -> bool:
    """Return whether a call of `open` creates or changes a file that has no side name yet."""
    words = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
    texts = [w.value for w in words if isinstance(w, ast.Constant) and isinstance(w.value, str)]
    mode = next((text for text in texts if MODE.fullmatch(text)), "")
    return bool(set(mode) & set("wax+"))


def writes(function: str, call: ast.Call) -> str:
    """Return the name of a call that the room of files has a function for."""
    name = function if function in INSTEAD else function.rpartition(".")[2]
    if name == "os.open":
        changing = re.search(r"O_(WRONLY|RDWR|CREAT|APPEND|TRUNC)", ast.unparse(call))
        return name if changing else ""
    if name == "open":
        plain = function in ("side.open", "wave.open") or not opens_to_write(call)
        return "" if plain else name
    return name if name in INSTEAD else ""


def files_written(source: Source) -> Found:
    for function, call in source.calls:
        if name := writes(function, call):
            yield call.lineno, f"{name}; use {INSTEAD[name]}"
    for node in source.nodes:
        if isinstance(node, ast.Constant) and str(node.value).endswith(".part"):
            yield node.lineno, "a side name; use replace_file or replace_folder"


# One module knows how a Python process is started, so that no child imports what lies in its folder.

STARTS_PYTHON = "core/emberge/interpreter.py"
STARTERS = re.compile(
    r"sys\.executable|os\.(system|popen|(exec|spawn|posix_spawn)\w*)|multiprocessing|runpy"
)


def python_started(source: Source) -> Found:
    for one in source.imports:
        if one.module.split(".")[0] in ("multiprocessing", "runpy") or (
            one.module == "sys" and "executable" in one.names
        ):
            yield one.line, f"imports {one.module} to start processes"
    for node in source.nodes:
        name = dotted(node) if isinstance(node, ast.Attribute) else ""
        if STARTERS.fullmatch(name):
            yield node.lineno, f"{name} starts processes"


# Tests.


def judges(node: ast.AST, local: dict[str, ast.FunctionDef], seen: frozenset[str]) -> bool:
    """Return whether code has an assert, `raises`, or a call that has one or that must succeed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert):
            return True
        if isinstance(inner, ast.Raise) and "AssertionError" in ast.unparse(inner):
            return True
        if isinstance(inner, ast.Call):
            name = dotted(inner.func).rpartition(".")[2]
            if name in ("raises", "warns", "fail") or name.startswith(("check_", "assert_")):
                return True
            if name == "run" and any(ast.unparse(k) == "check=True" for k in inner.keywords):
                return True
            if name in local and name not in seen and judges(local[name], local, seen | {name}):
                return True
    return False


def claimless_tests(source: Source) -> Found:
    if not source.path.name.startswith("test_"):
        return
    local = {n.name: n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)}
    tests = [node for name, node in local.items() if name.startswith("test_")]
    if not tests:
        yield 1, "a test file without a test"
    for node in tests:
        if not judges(node, local, frozenset({node.name})):
            yield node.lineno, f"{node.name} asserts nothing"


# What a step states for others is typed: no key of an artifact's details is looked up by its name.

OWN_DETAILS = "plugins/emberge_boom/interactions.py"


def details_taken_apart(source: Source) -> Found:
    for node in source.nodes:
        taken = getattr(node, "value", None) if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Attribute) and node.attr in ("get", "items", "keys"):
            taken = node.value
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            taken = node.comparators[0]
        if isinstance(taken, ast.Attribute) and taken.attr == "details":
            yield (
                node.lineno,
                f"{ast.unparse(node)}: a key of details; read a field of typed details",
            )


# Rule by its claim: where it holds, and files that may break it, each of which must.
RULES: dict[str, tuple[Rule, tuple[Path, ...], set[str]]] = {
    "no file has a vague name": (vague_names, (CORE, PLUGINS, EXAMPLES, TESTS), set()),
    "docstrings say what comes back": (vague_docstrings, (CORE, PLUGINS, EXAMPLES), set()),
    "a module says what it is": (silent_modules, (CORE, PLUGINS, EXAMPLES), set()),
    "one module makes optimizers": (optimizers_made, (CORE, PLUGINS), {MAKES_OPTIMIZERS}),
    "one module steps optimizers": (optimizers_stepped, (CORE, PLUGINS), {STEPS_OPTIMIZERS}),
    "encoding runs forward passes": (forward_passes, (CORE, PLUGINS), set(PASSES_ELSEWHERE)),
    "files are written by their room": (files_written, (CORE, PLUGINS), NEW_FILES),
    "one module starts Python": (python_started, (CORE, PLUGINS, EXAMPLES), {STARTS_PYTHON}),
    "no step reads keys of another's details": (
        details_taken_apart,
        (CORE, PLUGINS),
        {OWN_DETAILS},
    ),
    "every test asserts": (claimless_tests, (TESTS, EXAMPLES), set()),
}
# The rooms that the rule sends everybody to.
DOORS = {forward_passes: RUNS_MODELS, files_written: "core/emberge/files/"}


@pytest.mark.parametrize("claim", RULES)
def test_every_file_keeps_the_rule(claim: str) -> None:
    rule, roots, exceptions = RULES[claim]
    door = DOORS.get(rule, "no such folder")
    found = findings(rule, sources(*roots))
    elsewhere = [one for one in found if not one.startswith(door)]
    wrong = [one for one in elsewhere if one.partition(":")[0] not in exceptions]
    assert not wrong, "\n".join(wrong)
    assert exceptions - {one.partition(":")[0] for one in found} == set(), "no exceptions any more"
    assert door == "no such folder" or len(elsewhere) < len(found), "the room itself has some"


def test_optimizers_are_stepped_on_one_line() -> None:
    assert len(findings(optimizers_stepped, sources(CORE, PLUGINS))) == 1


PLANTED: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (vague_docstrings, ("'What it is.'", "def f() -> None:\n    '''Whether it is.'''")),
    (silent_modules, ("x = 1",)),
    (optimizers_made, ("torch.optim.SGD(weights, lr=0.1)", "from torch import nn, optim")),
    (optimizers_stepped, ("self._optimizer.step()",)),
    (
        forward_passes,
        (
            "encoder(encoder.collate(texts))",
            "inner.states(features)",
            "model(input_ids=ids).logits",
            "cross.predict(pairs, show_progress_bar=False)",
            "(trunk if plain else other)(**inputs)",
        ),
    ),
    (
        files_written,
        (
            "open(path, mode='r+b')",
            "os.open(path, os.O_WRONLY | os.O_CREAT)",
            "fcntl.flock(file, 2)",
            "link.symlink_to(target)",
            "path.with_name(f'.{name}.part')",
        ),
    ),
    (python_started, ("from sys import executable", "os.posix_spawnp(a)", "import runpy")),
    (details_taken_apart, ("a.details['base']", "model.details.get(key)", "'x' not in a.details")),
    (claimless_tests, ("x = 1", "def test_nothing() -> None:\n    print('all is well')")),
)
FINE: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (vague_docstrings, ("'Whatever it is.'", "x = 'What it is.'")),
    (optimizers_made, ("def take(optimizer: torch.optim.Optimizer): ...",)),
    (optimizers_stepped, ("writing.step()", "torch.optim.SGD(weights, lr=0.1)")),
    (forward_passes, ("encoder.collate(texts)", "text.encode('utf-8')", "states(folder)")),
    (files_written, ("path.open('rb')", "os.open(path, os.O_RDONLY)", "side.open('wb')")),
    (python_started, ("subprocess.run(['cc'])", "sys.exit()")),
    (details_taken_apart, ("artifact.details.weights['a']", "details['a'] = 1")),
    (claimless_tests, ("def f(): assert 1\ndef test_a(): f()",)),
)


def test_the_rules_find_planted_faults_and_nothing_else() -> None:
    for number, cases in enumerate((FINE, PLANTED)):
        for rule, texts in cases:
            for text in texts:
                found = findings(rule, [Source("tests/house/test_new.py", text)])
                assert len(found) == number, (rule, text, found)
    assert findings(vague_names, [Source("core/emberge/io_utils/a.py", "")])
    assert findings(silent_modules, [Source("core/emberge/a/__init__.py", "'All of a.'")])


# Of all files.


def find_stale_constants(texts: dict[str, str]) -> list[str]:
    """Return each constant in backquotes that no code has, with its file."""
    code = "\n".join(re.sub(r"`[^`\n]*`|#.*", "", text) for text in texts.values())
    known = set(re.findall(r"\w+", code))
    quoted = {
        (p, n) for p, text in texts.items() for n in re.findall(r"`(_?[A-Z][A-Z0-9_]{2,})`", text)
    }
    return sorted(f"{place}: `{name}`" for place, name in quoted if name not in known)


def test_every_constant_that_a_comment_names_exists() -> None:
    files = sources(CORE, PLUGINS, EXAMPLES)
    assert find_stale_constants({source.place: source.text for source in files}) == []
    assert find_stale_constants({"a.py": "TIED_NAMES = 1  # `TIED`, `TIED_NAMES`"}) == [
        "a.py: `TIED`"
    ]


def test_no_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for source in sources(CORE, PLUGINS):
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{source.place}:{node.lineno}")
    assert len(homes) > 500
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_every_room_is_a_package() -> None:
    rooms = {source.path.parent for source in sources(CORE, PLUGINS)} - {PLUGINS}
    assert [room for room in rooms if not (room / "__init__.py").is_file()] == []


# Folders that hold one machine's things, put together so that this line is no find itself.
MACHINE = re.compile(rf"(?<![\w.}}$])/({'|'.join(('work', 'root', 'home', 'Users', 'opt'))})/")
TO_DO = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
TEXTS = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".html", ".css", ".json", ""}


def own_texts() -> Iterator[Path]:
    """Yield every text file that the project is made of."""
    tops = [CORE, PLUGINS, EXAMPLES, TESTS, ROOT / "merge_recipes", ROOT / "docs", ROOT / ".ci"]
    for file in (*ROOT.iterdir(), *(f for top in tops for f in top.rglob("*"))):
        made = "__pycache__" in file.parts or file.name == ".git" or ".coverage" in file.name
        if file.suffix in TEXTS and file.is_file() and not made:
            yield file


def traces(text: str) -> Found:
    """Yield lines that name a place on one machine, or that say that something is left to do."""
    if MACHINE.search(text) or TO_DO.search(text):
        for number, line in enumerate(text.splitlines(), 1):
            place = MACHINE.search(line) and not re.search(rf"https?://\S*{MACHINE.pattern}", line)
            if place or TO_DO.search(line):
                yield number, line.strip()[:80]


def test_nothing_names_a_place_on_one_machine_or_is_left_to_do() -> None:
    assert [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in sorted(own_texts())
        for line, what in traces(file.read_text("utf-8"))
    ] == []


def test_a_place_is_known_from_a_part_of_a_path() -> None:
    for line in ("see /{}/me/model", "'/{}/x'", "TO" + "DO: mend it"):
        assert [n for n, _ in traces("a\n" + line.format("work"))] == [2], line
    for line in ("out/{}/states", "/{}s/x", "https://x.org/{}/y"):
        assert [*traces("a\n" + line.format("work"))] == [], line
