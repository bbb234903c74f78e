"""Names: a function begins with a verb, a constant has its noun, a parameter is no pronoun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.project import Rule, Source, findings, sources
from tests.support.sources import CORE, PLUGINS

Found = Iterator[tuple[int, str]]

VERBS = set(
    re.findall(
        r"\w+",
        """
    accept adapt add advise agree align allow announce append apply ask assign average backward begin
    broadcast build call can cast chain change check choose clean clear clip close collate collect colour
    combine compare compile complete compute conclude convert copy correlate corrupt count cover create
    cut decide decode define describe disable dismiss divide document drain draw drop embed encode end
    enter escape estimate evaluate exclude execute expand expect explain extend factorise fail fetch fill
    find finish fit flatten flush fold follow forget form format forward free freeze fuse gather get give
    group guard guess halve handle has hash hear hide hold hook identify ignore import init insert
    interpolate interrupt is iterate join judge keep kill label launch learn leave limit link list load
    locate lock log look lower make map mark mask match mean measure merge mix modernise move multiply
    name narrow normalise note number offer open order override pack pad pair parse pause pick pin place
    plan poll pool pop predict prefetch prepare preview print produce publish put queue quote raise rank
    read rebuild recognise recompute record reduce refer refuse register release remember remove rename
    render renumber repeat replace report require resample reserve reshape resolve restart restore resume
    retry return reuse route run sample save scale score search seed select send separate set shard share
    shift shorten show shuffle silence simplify skip slice smooth sort span split spread stack
    standardise start stop store stream strip submit subtract suggest sum summarise switch sync take
    tally tap tell thin tokenise trace train transform translate transpose try union unpack update upload
    use verify view wait walk warn watch weigh widen wrap write yield zero
    """,
    )
)
CONVERSIONS = {"as", "at", "from", "of", "to", "with", "without"}
# Names that a library calls, and two that a plugin's class body is written with.
GIVEN_NAMES = {"error", "layer", "main", "named_modules", "similarity_pairwise", "_"} | {
    "chain",
    "component",
}
PRONOUNS = {"found", "given", "one", "own", "rest"}
# Words that need a noun after them.
QUALITIES = re.compile(
    r"(?!SEED)[A-Z]+ED|ALONE|APART|BLIND|DIRECT|ELSEWHERE|EMPTY|EQUAL|FEW|FEWEST|FINAL|INSIDE|LARGE|LOCAL|LONGEST|MANY"
    r"|MOST|NAMING|NARROWEST|NEUTRAL|OPPOSITE|OUTER|PLAIN|READING|REPLACE|RUN|SAME|SHORTEST|SINGULAR|SPECIAL"
    r"|SWITCH|TINY|TOO|TOP|UNKNOWN"
)


def functions(source: Source) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield each function of a module and method of its classes, with its class's name or ""."""
    for node in source.tree.body:
        members = (
            [(node.name, n) for n in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        )
        yield from ((owner, n) for owner, n in members if isinstance(n, ast.FunctionDef))


# What a contract names, a component implements: `batches` of a sampler, `states` of an encoder.
CONTRACTS = sources(CORE / "contracts")
CONTRACT_NAMES = {node.name for source in CONTRACTS for owner, node in functions(source) if owner}


def nouns_for_functions(source: Source) -> Found:
    for owner, node in functions(source):
        marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
        returns = ast.unparse(node.returns) if node.returns else ""
        word = node.name.strip("_").partition("_")[0]
        is_context = "contextmanager" in marks or "ContextManager" in returns
        if not (
            word in VERBS | CONVERSIONS
            or node.name in GIVEN_NAMES
            or node.name.startswith("__")
            or re.search(r"property|\.setter", marks)
            or (returns == "bool" and (word.endswith("s") or word in ("are", "have")))
            or (is_context and word.endswith(("ing", "ed")))
            or (owner and node.name in CONTRACT_NAMES)
        ):
            yield node.lineno, f"{node.name} begins with no verb"


def pronouns(source: Source) -> Found:
    for node in source.nodes:
        name = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
        if isinstance(node, ast.FunctionDef):
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if argument.arg in PRONOUNS:
                    yield node.lineno, f"{argument.arg} of {name} needs a noun"
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        if name.strip("_").lower() in PRONOUNS:
            yield node.lineno, f"{name} needs a noun"


def bare_constants(source: Source) -> Found:
    for node in source.tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            name = target.id if isinstance(target, ast.Name) else ""
            if name.isupper() and all(map(QUALITIES.fullmatch, name.strip("_").split("_"))):
                yield node.lineno, f"{name} has no noun"


@pytest.mark.parametrize("rule", [nouns_for_functions, pronouns, bare_constants])
def test_names_keep_the_rule(rule: Rule) -> None:
    wrong = findings(rule, sources(CORE, PLUGINS))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("rule", "text", "count"),
    [
        (nouns_for_functions, "def layers(x): ...\nclass A:\n    def weight_rows(self): ...", 2),
        (nouns_for_functions, "class A:\n    @property\n    def weight_rows(self): ...", 0),
        (nouns_for_functions, "def uses_layers(x) -> bool: ...\ndef to_text(x): ...", 0),
        (pronouns, "def f(own): ...\nclass A:\n    rest: str\n", 2),
        (bare_constants, "_LARGE = 1\nTOO_MANY = 2\nLARGE_BYTES = 3", 2),
    ],
)
def test_the_rules_find_planted_names(rule: Rule, text: str, count: int) -> None:
    assert len(findings(rule, [Source("core/emberge/new.py", text)])) == count
