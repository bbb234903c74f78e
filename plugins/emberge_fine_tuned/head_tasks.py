"""Kinds of task: the head, the inputs of a row, the loss of a batch, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from emberge import TokenisedText, split_parts
from emberge_encoder import LocatedText, LocatingEncoder
from torch import Tensor, nn
from torch.nn import functional as F

from emberge_fine_tuned.task_data import TaskData
from emberge_fine_tuned.task_rows import Answers, TaskRow

_WEIGHT_SPREAD = 0.02  # standard deviation of fresh weights, as transformers draws them
_DROPOUT_SHARE = 0.1  # of the head's input
_MISSING_PREDICTION = -1  # prediction for a word that was cut off
_SHARED_TOKENS = 128  # tokens that windows of a long passage share, a quarter of a window at most
_LONGEST_ANSWER_TOKENS = 30
Rows: TypeAlias = Sequence[TaskRow]


def build_head(width: int, outputs: int, *, of_tokens: bool) -> nn.Sequential:
    """Build a head with fresh weights, as transformers has them: EuroBERT's of texts, or that of tokens."""
    layers = [] if of_tokens else [nn.Linear(width, width), nn.GELU()]
    head = nn.Sequential(*layers, nn.Dropout(_DROPOUT_SHARE), nn.Linear(width, outputs))
    for module in head:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=_WEIGHT_SPREAD)
            nn.init.zeros_(module.bias)
    return head


@dataclass(frozen=True, slots=True)
class TaskInput:
    """Input of a row: its texts (several for windows) and its target.

    `word_positions` has for each word the position of its first token, or -1 if the word was cut off.
    `windows` locate the tokens of a passage.
    """

    row: TaskRow
    texts: tuple[TokenisedText, ...]
    target: Any
    word_positions: tuple[int, ...] = ()
    windows: tuple[LocatedText, ...] = ()


@dataclass(frozen=True)
class HeadBatch:
    """Inputs of rows, and the head's outputs for all their texts; `mask` [b, t] marks real tokens."""

    inputs: Sequence[TaskInput]
    logits: Tensor
    mask: Tensor

    @property
    def first_positions(self) -> Tensor:
        """Position [b] of each text's first token, which is not 0 if padding is on the left."""
        return self.mask.argmax(1)

    @property
    def targets(self) -> Tensor:
        """The inputs' targets, which are integers."""
        return _build_int_tensor([item.target for item in self.inputs], self.logits)


@dataclass(frozen=True)
class HeadTask:
    """Kind of task, with a head of whole texts, or one `of_tokens`."""

    of_tokens: ClassVar[bool] = False

    data: TaskData
    encoder: LocatingEncoder
    causal: bool
    max_length: int | None

    @property
    def outputs(self) -> int:
        """Number of the head's outputs."""
        return max(1, len(self.data.classes))

    def build_head(self, width: int) -> nn.Module:
        """Return a new head for hidden states of this width, initialised from torch's generator."""
        return build_head(width, self.outputs, of_tokens=self.of_tokens)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return what the head reads of hidden states [b, t, d]: all, a causal model's last, or the mean."""
        if self.of_tokens:
            return states
        if self.causal:
            last = mask.argmax(1) + mask.sum(1) - 1
            return states[torch.arange(len(states), device=states.device), last]
        real = mask.to(states.dtype)[..., None]
        return (states * real).sum(1) / real.sum(1)

    def read_inputs(self, rows: Rows, *, training: bool) -> list[TaskInput]:
        """Return the model's input for each row."""
        texts = self.tokenise([r.text for r in rows], [r.second for r in rows])
        return [
            TaskInput(row, (text,), self.read_target(row))
            for text, row in zip(texts, rows, strict=True)
        ]

    def tokenise(self, texts: Sequence[str], seconds: Sequence[str | None]) -> list[TokenisedText]:
        """Return the tokens of texts or pairs; a pair is one input if the task has images or clips."""
        if self.data.has_media:
            joined = [_join_pair(*pair) for pair in zip(texts, seconds, strict=True)]
            return list(self.encoder.tokenise(joined, prompt="", max_length=self.max_length))
        given_seconds = [second for second in seconds if second is not None]
        if (
            0 < len(given_seconds) < len(texts)
        ):  # of development sets with and without a second text
            pairs = zip(texts, seconds, strict=True)
            return [self.tokenise([text], [second])[0] for text, second in pairs]
        located = self.encoder.locate(texts, given_seconds or None, max_length=self.max_length)
        return [text.tokens for text in located]

    def read_target(self, row: TaskRow) -> Any:
        """Return the target of a row."""
        return row.gold

    def compute_loss(self, batch: HeadBatch) -> Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def predict(self, batch: HeadBatch) -> list[Any]:
        """Return a prediction for each row, as plain values."""
        raise NotImplementedError


class Classification(HeadTask):
    """Kind of task with one of several classes for each text or pair."""

    def read_target(self, row: TaskRow) -> int:
        return self.data.number_by_class[str(row.gold)]

    def compute_loss(self, batch: HeadBatch) -> Tensor:
        return F.cross_entropy(batch.logits.float(), batch.targets)

    def predict(self, batch: HeadBatch) -> list[Any]:
        return list(batch.logits.argmax(-1).tolist())


class Regression(HeadTask):
    """Kind of task with a number for each text or pair; the loss is the squared error."""

    def compute_loss(self, batch: HeadBatch) -> Tensor:
        values = batch.logits[:, 0].float()
        gold = torch.tensor([item.target for item in batch.inputs], device=values.device)
        return F.mse_loss(values, gold.float())

    def predict(self, batch: HeadBatch) -> list[Any]:
        return list(batch.logits[:, 0].float().nan_to_num().tolist())


class Words(HeadTask):
    """Kind of task with a class for each word, predicted at its first token."""

    of_tokens = True

    def read_inputs(self, rows: Rows, *, training: bool) -> list[TaskInput]:
        located = self.encoder.locate([row.text for row in rows], max_length=self.max_length)
        read = [
            TaskInput(
                row, (text.tokens,), self.read_target(row), _find_first_tokens(text, row.words)
            )
            for text, row in zip(located, rows, strict=True)
        ]
        if not training:
            return read
        # A batch of texts without a labelled token would have no loss.
        return [item for item in read if max(item.word_positions, default=-1) >= 0]

    def read_target(self, row: TaskRow) -> tuple[int, ...]:
        return tuple(self.data.number_by_class[label] for label in row.labels)

    def compute_loss(self, batch: HeadBatch) -> Tensor:
        gold = [
            target
            for item in batch.inputs
            for target, position in zip(item.target, item.word_positions, strict=True)
            if position >= 0
        ]
        return F.cross_entropy(
            _select_word_logits(batch).float(), _build_int_tensor(gold, batch.logits)
        )

    def predict(self, batch: HeadBatch) -> list[Any]:
        classes = iter(_select_word_logits(batch).argmax(-1).tolist())
        return [
            [
                next(classes) if position >= 0 else _MISSING_PREDICTION
                for position in item.word_positions
            ]
            for item in batch.inputs
        ]


def _select_word_logits(batch: HeadBatch) -> Tensor:
    """Return the logits [w, c] of all labelled tokens."""
    first = batch.first_positions.tolist()
    rows, positions = [], []
    for row, item in enumerate(batch.inputs):
        labelled_positions = [position for position in item.word_positions if position >= 0]
        rows += [row] * len(labelled_positions)
        positions += [first[row] + position for position in labelled_positions]
    return batch.logits[
        _build_int_tensor(rows, batch.mask), _build_int_tensor(positions, batch.mask)
    ]


class Spans(HeadTask):
    """Kind of task with a question's answer in a passage; long passages are cut into windows."""

    of_tokens = True
    outputs = 2

    def read_inputs(self, rows: Rows, *, training: bool) -> list[TaskInput]:
        located = self.encoder.locate(
            [row.text for row in rows],
            [row.second or "" for row in rows],
            max_length=self.max_length,
            stride=_SHARED_TOKENS,
        )
        if training:
            return [
                TaskInput(rows[w.row], (w.tokens,), _find_answer_tokens(w, rows[w.row].gold))
                for w in located
            ]
        windows: list[list[LocatedText]] = [[] for _ in rows]
        for window in located:
            windows[window.row].append(window)
        return [
            TaskInput(row, tuple(w.tokens for w in many), None, windows=tuple(many))
            for row, many in zip(rows, windows, strict=True)
        ]

    def compute_loss(self, batch: HeadBatch) -> Tensor:
        scores, gold = _mask_padding(batch), batch.targets + batch.first_positions[:, None]
        begin = F.cross_entropy(scores[..., 0], gold[:, 0])
        return (begin + F.cross_entropy(scores[..., 1], gold[:, 1])) / 2

    def predict(self, batch: HeadBatch) -> list[Any]:
        texts = zip(_mask_padding(batch), batch.first_positions.tolist(), strict=True)
        answers = []
        for item in batch.inputs:
            spans = [
                _find_best_span(scores[first : first + len(window.text_numbers)], window)
                for window, (scores, first) in zip(item.windows, texts, strict=False)
            ]
            _, begin, end = max(spans)
            answers.append((item.row.second or "")[begin:end])
        return answers


HEAD_TASKS: dict[str, type[HeadTask]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": Words,
    "span": Spans,
}


def _join_pair(text: str, second: str | None) -> str:
    """Return a text and its second one as one input; a line break is between two parts of text."""
    if second is None:
        return text
    before, after = split_parts(text)[-1:], split_parts(second)[:1]
    touching = all(isinstance(part, str) for part in (*before, *after))
    return f"{text}\n{second}" if touching else text + second


def _build_int_tensor(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _find_first_tokens(located: LocatedText, words: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the position of each word's first token, -1 for a word without tokens.

    A token may begin with the space before its word, and may cover several words.
    """
    spans = enumerate(zip(located.text_numbers, located.start, located.end, strict=True))
    tokens = [(position, start, stop) for position, (text, start, stop) in spans if text == 0]
    return tuple(
        next((n for n, start, stop in tokens if start < end and begin < min(end, stop)), -1)
        for begin, end in words
    )


def _find_answer_tokens(window: LocatedText, gold: Any) -> tuple[int, int]:
    """Return the positions of the answer's first and last token, or (0, 0) if the window has no answer."""
    assert isinstance(gold, Answers)
    begin, end = gold.start, gold.start + len(gold.texts[0])
    inside = [
        position
        for position, text_number in enumerate(window.text_numbers)
        if text_number == 1 and window.start[position] < end and window.end[position] > begin
    ]
    # A window at whose edge the answer is cut has only a part of the answer.
    whole = inside and window.start[inside[0]] <= begin and window.end[inside[-1]] >= end
    return (inside[0], inside[-1]) if whole else (0, 0)


def _find_best_span(scores: Tensor, window: LocatedText) -> tuple[float, int, int]:
    """Return (score, first character, last character) of the best span in a window's passage."""
    positions = [position for position, text in enumerate(window.text_numbers) if text == 1]
    if not positions:
        return float("-inf"), 0, 0
    position_tensor = torch.tensor(positions, device=scores.device)
    sums = scores[position_tensor, 0][:, None] + scores[position_tensor, 1][None]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(_LONGEST_ANSWER_TOKENS - 1)
    best = int(sums.masked_fill(~allowed, float("-inf")).argmax())
    first, last = divmod(best, len(positions))
    return float(sums[first, last]), window.start[positions[first]], window.end[positions[last]]


def _mask_padding(batch: HeadBatch) -> Tensor:
    """Return logits in float32; logits of padding are so low that softmax gives them zero."""
    return batch.logits.float().masked_fill(
        batch.mask[..., None] == 0, torch.finfo(torch.float32).min
    )
