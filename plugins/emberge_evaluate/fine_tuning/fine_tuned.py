"""The `fine_tuned` evaluator: scores of models after they were trained on tasks, with a head on top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberge import Backbone, Evaluator, component

from emberge_evaluate.fine_tuning.task_entry import TaskEntry

__all__ = ["FineTuned"]

Pooling = Literal["auto", "mean", "last", "bos", "late"]


@dataclass(frozen=True, kw_only=True)
class FineTuned(Evaluator):
    """Scores of models that were fine-tuned on tasks with a fresh head, as BidirLM is judged (arXiv:2604.02045).

    `tasks` are named tasks of the hub (GLUE, XTREME without its questions, XTREME-R, XNLI and others), `data`
    are tasks with rows of their own. The head of a whole text is a dense layer, GELU, dropout and a linear
    one over `pooling`: `mean`, `last`, `bos` (the first token) or `late` (the head on each token, then the
    mean of their logits); `auto` takes the last token of a causal model and the mean of others. Words are
    labelled by their first sub-token, or with `align: previous` by the token before it, as models trained to
    predict the next token have it.

    A training has `steps` steps with 10 % warm-up and a linear decay. Of several learning rates, and of the
    states of a training, the best on development data is tested. It ends early once `patience` epochs brought
    nothing better. Each of `seeds` is a column of its own, `model#seed`, and the interval over them is part of the comparison.
    Finished trainings are kept in OUT's store, so a killed evaluation goes on with the next one.

    A test of retrieval needs no head: a step `train` on triplets, then the evaluator `mteb`.

    Example:
        scores:
          evaluate:
            models: [./causal, ./adapted]
            evaluators:
              fine_tuned:
                tasks: [xnli]
                data:
                  - name: tone
                    train: ./tone/train.jsonl
                    test: [./tone/test.jsonl]
                    text: sentence
                learning_rate: [1e-5, 5e-5, 2e-4]
                steps: 500
                seeds: [1, 2, 3]
    """

    tasks: tuple[str, ...] = ()
    """Named tasks of the hub, or a whole collection: glue, xtreme, xtreme_r."""
    data: tuple[TaskEntry, ...] = ()
    """Tasks with rows of their own."""
    backbone: Backbone = component("text_encoder")
    """Encoder of a checkpoint."""
    pooling: Pooling = "auto"
    align: Literal["same", "previous"] = "same"
    prompt: str = ""
    """Text put before each text."""
    max_length: int | None = None
    """Tokens of a text at most; default: the model's own limit."""
    steps: int = 1000
    batch_size: int = 32
    learning_rate: tuple[float, ...] = (5e-5,)
    """Learning rates to choose from on development data."""
    warmup: float = 0.1
    """Share of the steps."""
    weight_decay: float = 0.0
    dropout: float = 0.1
    """Dropout of the head."""
    eval_steps: int | None = None
    """Steps between looks at development data; default: a twentieth of the steps."""
    patience: float | None = 1.0
    """Epochs without a better score on development data that end a training; null for none."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the head, the order of rows and dropout."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type that passes compute in; weights are float32."""
