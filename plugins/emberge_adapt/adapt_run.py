"""One adaptation, from the user's words to a recipe that is checked and run, and to its outcome."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberge import (
    CheckpointError,
    DataError,
    Machine,
    ModelRef,
    Plugins,
    RecipeError,
    RequirementError,
    StepResult,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.devices import find_machine
from emberge.model_folder import Checkpoint, TextLimit
from emberge.recipes import is_folder_reference, locate_model
from emberge.wording import count_noun
from emberge_data import read_document_rows
from emberge_evaluate import read_scores

from emberge_adapt.adapt_data import AdaptData, parse_columns, recognise_data
from emberge_adapt.adapt_outcome import AdaptOutcome
from emberge_adapt.adapt_plan import (
    DEFAULT_MODEL,
    MOST_SEARCHED_DOCUMENTS,
    PACKAGED_MODEL,
    AdaptPlan,
    Effort,
    choose_training,
    count_held_out_rows,
    count_parameters,
    require_effort,
)
from emberge_adapt.data_facts import DataFacts, read_data_facts
from emberge_adapt.recipe_text import CLEAN, FOUND, MODEL, SCORES, write_recipe


@dataclass(frozen=True, kw_only=True)
class AdaptRequest:
    """The user's words: what to adapt to, which model, and how much work it may be."""

    data: str
    model: str = DEFAULT_MODEL
    effort: Effort = "normal"
    columns: Mapping[str, str] = field(default_factory=dict)
    documents: str | None = None
    test: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Adaptation:
    """An adaptation that is ready to run: its plan, the facts that decided it, and the recipe's text."""

    request: AdaptRequest
    plan: AdaptPlan
    facts: DataFacts
    recipe_text: str
    further_documents: int = 0

    def preview(self) -> Iterator[str]:
        """Yield what was understood, and what will be done, as lines for the terminal."""
        plan, training = self.plan, self.plan.training
        summary, *details = self.facts.preview()
        yield f"{self.request.data}: {summary}"
        yield from (f"  {line}" for line in details)
        if plan.documents is not None:
            shown = count_noun(self.further_documents, "further document")
            yield f"{plan.documents}: {shown}, in the test and (up to 500) where weights are found"
        test = count_noun(plan.test_rows, "row") if plan.test is None else str(plan.test)
        dev = count_noun(plan.dev_rows, "dev row")
        share = f"the base's share by {dev}; " if plan.finds_weights else ""
        among = ""
        if plan.searches_all_rows and plan.test is None:
            found, most = plan.row_documents, MOST_SEARCHED_DOCUMENTS
            all_of = "all" if found <= most else f"{most:,} of"
            among = f" among {all_of} {count_noun(found, 'document')}"
        yield (
            f"test: {test}{among}; {share}{plan.effort} effort: "
            f"{count_noun(len(plan.member_shares), 'training')} of {count_noun(training.epochs, 'pass')}, "
            f"texts of up to {training.max_length} tokens"
        )


def prepare_adaptation(request: AdaptRequest, plugins: Plugins) -> Adaptation:
    """Read the data and the model's config, choose all settings, and write the recipe.

    Raises:
        DataError: if the data or documents cannot be used.
        CheckpointError: if the model does not exist or is no encoder.
        RecipeError: if documents are given for data that is documents itself.
    """
    data = recognise_data(request.data, request.columns)
    if request.test is not None and Path(request.test).resolve() == Path(request.data).resolve():
        raise DataError(
            f"{request.test}: is the data too; test on other rows, or leave --test out to hold some out"
        )
    if request.test is not None and recognise_data(request.test).kind == "documents":
        raise DataError(
            f"{request.test}: has documents and no queries; a test is a file of rows with queries and their "
            "documents"
        )
    documents = _count_documents(request.documents, data, plugins) if request.documents else 0
    if not is_folder_reference(request.model) and Path(request.model).is_dir():
        request = replace(request, model=f"./{request.model}")
    folder = _locate_encoder(request.model, plugins)
    facts = read_data_facts(data, folder, plugins)
    dev_rows, test_rows = count_held_out_rows(facts, has_test=request.test is not None)
    plan = AdaptPlan(
        data_entry=data.entry,
        model=request.model,
        training=choose_training(
            facts,
            rows=facts.rows - dev_rows - test_rows,
            effort=request.effort,
            parameters=count_parameters(Checkpoint(folder)),
            length_limit=TextLimit.read(folder).longest,
        ),
        rows=facts.rows,
        dev_rows=dev_rows,
        dev_units=int(dev_rows * facts.units_by_row * facts.smallest_set / facts.rows),
        row_documents=facts.documents,
        sets=len(facts.sets),
        test_rows=test_rows,
        effort=request.effort,
        tasks=facts.tasks,
        data_kind=data.kind,
        has_negatives=facts.has_negatives,
        documents=request.documents,
        test=request.test,
        columns=request.columns,
        seed=request.seed,
    )
    return Adaptation(request, plan, facts, write_recipe(plan), documents)


def _count_documents(documents: str, data: AdaptData, plugins: Plugins) -> int:
    """Read further documents, so that none ends the evaluation after the trainings; return their number."""
    if data.kind != "rows":
        raise RecipeError(
            f"--documents goes with pairs; put further documents into {data.label} instead"
        )
    if not Path(documents).is_file():
        raise DataError(
            f"{documents}: further documents are in one file of rows with text, or with a document in each "
            "line of a .txt file; write them to a file, or name the folder as DATA"
        )
    if documents.lower().endswith(".txt"):
        count = sum(bool(line.strip()) for line in Path(documents).read_bytes().splitlines())
    else:
        rows = read_document_rows(Path(documents), plugins.build_every("reader"))
        count = sum(bool(row.join()) for row in rows)
    if not count:
        raise DataError(
            f"{documents}: has no documents; leave --documents out to search those of the rows"
        )
    return count


def _locate_encoder(model: str, plugins: Plugins) -> Path:
    """Return the folder of a model that embeds texts."""
    try:
        folder = locate_model(ModelRef(model), plugins).folder
    except ConnectionError as error:
        raise CheckpointError(
            f"{model} was not found: {error}; connect, or name a folder by --model, or "
            f"{PACKAGED_MODEL}, which comes with emberge[demo]"
        ) from error
    facts = plugins.find("text_encoder", "backbone").type().describe(folder)
    for problem in (*facts.problems, *facts.training_problems):
        what, _, _ = problem.partition(";")  # the remedy after it is one of recipes
        raise CheckpointError(
            f"{model}: {what}; --model needs an encoder of texts, such as {DEFAULT_MODEL}"
        )
    return folder


def run_adaptation(
    adaptation: Adaptation, out: Path, plugins: Plugins, *, machine: Machine, quiet: bool = False
) -> AdaptOutcome:
    """Check and run the recipe in `out`, where steps that an earlier call did are kept; return the outcome.

    The preview and warnings are printed before the work starts, unless it is `quiet`. If requirements on gain
    or forgetting are not met, the outcome still is complete.

    Raises:
        RecipeError: if the check finds errors.
    """
    recipe = parse_recipe(adaptation.recipe_text, plugins)
    report = check_recipe(recipe, plugins)
    warnings = [f"warning: {warning}" for warning in report.of("warning")]
    if not quiet:
        print("\n".join([*adaptation.preview(), *warnings]), flush=True)
    report.raise_errors()
    with contextlib.suppress(RequirementError):  # the outcome names what is missing
        run_recipe(recipe, out, plugins, machine=machine, quiet=quiet)
    steps = [CLEAN, MODEL, *([FOUND] if adaptation.plan.finds_weights else [])]
    artifacts = {step: StepResult(step, out / step).artifact for step in steps}
    return AdaptOutcome(out, read_scores(out / SCORES), adaptation.plan, artifacts)


def adapt(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str = DEFAULT_MODEL,
    effort: str = "normal",
    columns: Mapping[str, str] | None = None,
    documents: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    seed: int = 0,
    devices: str | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    quiet: bool = False,
) -> AdaptOutcome:
    """Adapt a model to data: train, merge with the base, test, report; return the outcome.

    The arguments are the options of `emberge adapt`; `columns` is `{"query": "question", "document":
    "answer"}`. A call that was interrupted goes on when it is repeated. Without a gain beyond chance the
    outcome has `has_gain` False, and says what would help.

    Raises:
        DataError: before any work, if the data cannot be used.
        CheckpointError: before any work, if the model does not exist or is no encoder.
        RecipeError: before any work, if an option is wrong.
    """
    plugins = load_plugins()
    request = AdaptRequest(
        data=os.fspath(data),
        model=model,
        effort=require_effort(effort),
        columns=parse_columns(f"{part}={column}" for part, column in (columns or {}).items()),
        documents=None if documents is None else os.fspath(documents),
        test=None if test is None else os.fspath(test),
        seed=seed,
    )
    machine = find_machine(devices, workers, memory)
    adaptation = prepare_adaptation(request, plugins)
    return run_adaptation(adaptation, Path(out), plugins, machine=machine, quiet=quiet)


def run_verb(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the recipe, or run it and print the outcome; return the exit code.

    Raises:
        RecipeError: if --out is missing.
    """
    request = AdaptRequest(
        model=options.model or DEFAULT_MODEL,
        effort=require_effort(options.effort),
        columns=parse_columns(options.columns),
        **{name: getattr(options, name) for name in ("data", "documents", "test", "seed")},
    )
    if options.out is None and not options.print:
        raise RecipeError("name the folder of the results by --out DIR, or only --print the recipe")
    adaptation = prepare_adaptation(request, plugins)
    if options.print:
        print(adaptation.recipe_text, end="")
        return 0
    machine = find_machine(options.devices, options.workers, options.memory)
    outcome = run_adaptation(adaptation, options.out, plugins, machine=machine, quiet=options.quiet)
    print("\n".join(outcome.format_lines()))
    return RequirementError.exit_code if outcome.unmet else 0
