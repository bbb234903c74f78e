"""Tasks of the hub by name: GLUE, XTREME, XTREME-R, and those of BidirLM's paper.

In XTREME (arXiv:2003.11080) and XTREME-R (arXiv:2104.07412) the training data is English, and each language
is a test set; the evaluator `mteb` has their retrieval tasks. GLUE's test labels are secret, so models are
tested on its development data, and settings are chosen on a part of the training rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from emberge import DataError, suggest

from emberge_evaluate.fine_tuning.task_entry import Head, Metric, TaskEntry, TaskRowSource


def _build_glue_task(
    name: str,
    text: str,
    second: str | None = None,
    *,
    metric: Metric = "accuracy",
    head: Head = "classification",
    start: str | None = None,
    tests: tuple[str, ...] = ("validation",),
) -> TaskEntry:
    hub = "nyu-mll/glue"
    return TaskEntry(
        name=name,
        train=TaskRowSource(hub=hub, subset=name),
        test=tuple(TaskRowSource(hub=hub, subset=name, split=split, name=split) for split in tests),
        text=text,
        second=second,
        metric=metric,
        head=head,
        start=start,
    )


_XTREME = "google/xtreme"


def _split_words(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_XNLI = _split_words("ar bg de el en es fr hi ru sw th tr ur vi zh")
_PAWS = _split_words("de en es fr ja ko zh")
_PAN = _split_words(
    "af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl pt ru sw ta te th "
    "tl tr ur vi yo zh"
)
_UD = _split_words(
    "Afrikaans Arabic Basque Bulgarian Chinese Dutch English Estonian Finnish French German Greek Hebrew "
    "Hindi Hungarian Indonesian Italian Japanese Kazakh Korean Marathi Persian Portuguese Russian Spanish "
    "Tagalog Tamil Telugu Thai Turkish Urdu Vietnamese Yoruba"
)
_XQUAD = _split_words("ar de el en es hi ru th tr vi zh")
_MLQA = _split_words("ar de en es hi vi zh")
_XCOPA = _split_words("et ht id it qu sw ta th tr vi zh")


def _test_each_language(
    hub: str, subset: str, languages: Sequence[str], split: str = "test"
) -> tuple[TaskRowSource, ...]:
    """Return a test set for each language."""
    return tuple(
        TaskRowSource(hub=hub, subset=subset.format(language), split=split, name=language)
        for language in languages
    )


def _split_english(hub: str, subset: str) -> tuple[TaskRowSource, tuple[TaskRowSource, ...]]:
    """Return the training rows and the development rows of a subset."""
    return TaskRowSource(hub=hub, subset=subset), (
        TaskRowSource(hub=hub, subset=subset, split="validation"),
    )


def _build_pair_task(
    name: str, hub: str, text: str, second: str, languages: Sequence[str]
) -> TaskEntry:
    train, dev = _split_english(hub, "en")
    test = _test_each_language(hub, "{}", languages)
    return TaskEntry(name=name, train=train, dev=dev, test=test, text=text, second=second)


def _build_word_task(
    name: str,
    subset: str,
    english: str,
    languages: Sequence[str],
    label: str,
    labels: str,
    metric: Metric,
) -> TaskEntry:
    train, dev = _split_english(_XTREME, subset.format(english))
    return TaskEntry(
        name=name,
        head="tokens",
        train=train,
        dev=dev,
        test=_test_each_language(_XTREME, subset, languages),
        text="tokens",
        label=(label,),
        labels=_split_words(labels),
        metric=metric,
    )


def _build_question_task(name: str, test: tuple[TaskRowSource, ...]) -> TaskEntry:
    hub = "rajpurkar/squad"
    return TaskEntry(
        name=name,
        head="span",
        train=TaskRowSource(hub=hub),
        dev=(TaskRowSource(hub=hub, split="validation", limit=2000),),
        test=test,
        text="question",
        second="context",
        label=("answers",),
    )


def _build_split_task(name: str, hub: str, subset: str | None = None, **more: object) -> TaskEntry:
    """Return a task whose data set has the splits train, validation and test."""
    train, dev, test = (
        TaskRowSource(hub=hub, subset=subset, split=split)
        for split in ("train", "validation", "test")
    )
    return TaskEntry(name=name, train=train, dev=(dev,), test=(test,), **more)  # type: ignore[arg-type]


_ALL = (
    _build_glue_task("cola", "sentence", metric="matthews"),
    _build_glue_task("sst2", "sentence"),
    _build_glue_task(
        "mnli", "premise", "hypothesis", tests=("validation_matched", "validation_mismatched")
    ),
    _build_glue_task("mrpc", "sentence1", "sentence2", metric="f1", start="mnli"),
    _build_glue_task(
        "stsb", "sentence1", "sentence2", metric="spearman", head="regression", start="mnli"
    ),
    _build_glue_task("qqp", "question1", "question2", metric="f1"),
    _build_glue_task("qnli", "question", "sentence"),
    _build_glue_task("rte", "sentence1", "sentence2", start="mnli"),
    _build_pair_task("xnli", "facebook/xnli", "premise", "hypothesis", _XNLI),
    _build_pair_task("paws_x", "google-research-datasets/paws-x", "sentence1", "sentence2", _PAWS),
    _build_word_task(
        "pan_x",
        "PAN-X.{}",
        "en",
        _PAN,
        "ner_tags",
        "O B-PER I-PER B-ORG I-ORG B-LOC I-LOC",
        "entity_f1",
    ),
    _build_word_task(
        "udpos",
        "udpos.{}",
        "English",
        _UD,
        "pos_tags",
        "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X",
        "macro_f1",
    ),
    _build_question_task("xquad", _test_each_language(_XTREME, "XQuAD.{}", _XQUAD, "validation")),
    _build_question_task("mlqa", _test_each_language(_XTREME, "MLQA.{0}.{0}", _MLQA)),
    _build_question_task(  # its subset has all languages
        "tydiqa", (TaskRowSource(hub=_XTREME, subset="tydiqa", split="validation"),)
    ),
    TaskEntry(
        name="xcopa",
        head="choice",
        train=TaskRowSource(hub="aps/super_glue", subset="copa"),
        dev=(TaskRowSource(hub="aps/super_glue", subset="copa", split="validation"),),
        test=_test_each_language("cambridgeltl/xcopa", "{}", _XCOPA),
        text="premise",
        second="question",
        choices=("choice1", "choice2"),
    ),
    TaskEntry(
        name="math_shepherd",
        train=TaskRowSource(hub="trl-lib/math_shepherd"),
        test=(TaskRowSource(hub="trl-lib/math_shepherd", split="test"),),
        text="prompt",
        second="completions",
        label=("labels",),
    ),
    _build_split_task(
        "code_complexity",
        "ObscuraCoder/code-classification",
        "complexity-prediction",
        text="source_code",
    ),
    _build_split_task(
        "seahorse",
        "hgissbkh/seahorse",
        head="regression",
        text="summary",
        second="text",
        label=(
            *("comprehensible", "repetition", "grammar"),
            *("attribution", "main_ideas", "conciseness"),
        ),
    ),
)
TASKS = {entry.name: entry for entry in _ALL}
COLLECTIONS = {
    "glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"),
    "xtreme": ("xnli", "paws_x", "udpos", "pan_x"),
    "xtreme_r": ("xnli", "xcopa", "udpos", "pan_x", "xquad", "mlqa", "tydiqa"),
    "bidirlm": ("xnli", "paws_x", "math_shepherd", "code_complexity", "seahorse", "pan_x", "udpos"),
}


def hub_tasks(names: Sequence[str]) -> list[TaskEntry]:
    """Return the tasks for names of tasks and collections, each after the task that it starts from.

    Raises:
        DataError: for a name that is neither a task nor a collection.
    """
    task_names: dict[str, None] = {}
    for name in names:
        if name not in TASKS and name not in COLLECTIONS:
            known_names = [*TASKS, *COLLECTIONS]
            hint = suggest(name, known_names) or f"; there are {', '.join(known_names)}"
            raise DataError(f"there is no task of the hub called '{name}'{hint}")
        for task_name in COLLECTIONS.get(name, (name,)):
            start = TASKS[task_name].start
            task_names |= {task_name: None} if start is None else {start: None, task_name: None}
    return [TASKS[name] for name in task_names]
