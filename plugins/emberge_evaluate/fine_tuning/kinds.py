"""Kinds of task: the inputs of a row, the loss of a batch, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from emberge import TokenisedText, split_parts
from emberge.contracts import LocatedText, TokenEncoder
from torch import Tensor, nn
from torch.nn import functional as F

from emberge_evaluate.fine_tuning.task_data import TaskData
from emberge_evaluate.fine_tuning.task_rows import Answers, TaskRow

_SPREAD = 0.02  # standard deviation of fresh weights, as transformers draws them
UNSCORED = -100
_MISSED = -1  # prediction for a word that was cut off
_STRIDE = 128  # tokens that windows of a long passage share, a quarter of a window at most
_LONGEST_ANSWER = 30  # tokens


class TextHead(nn.Module):
    """Dense layer, GELU, dropout and a linear layer on each text's pooled hidden state.

    With `late` pooling the head is applied to each token, and the logits are averaged (EuroBERT,
    arXiv:2503.05500).
    """

    def __init__(self, width: int, outputs: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(width, width)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        _draw_weights(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits [b, c] of hidden states [b, t, d]; `mask` [b, t] marks real tokens."""
        if self.pooling == "late":
            return _mean_over_tokens(self._compute_logits(states), mask)
        return self._compute_logits(_pool_states(states, mask, self.pooling))

    def _compute_logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.out(self.dropout(self.activation(self.dense(states))))
        return logits


class TokenHead(nn.Module):
    """Dropout and a linear layer on each token's hidden state."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        _draw_weights(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits [b, t, c] of hidden states [b, t, d]."""
        logits: Tensor = self.out(self.dropout(states))
        return logits


def first_places(mask: Tensor) -> Tensor:
    """Return the position [b] of each text's first token, which is not 0 if padding is on the left."""
    return mask.argmax(1)


def _pool_states(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "mean":
        return _mean_over_tokens(states, mask)
    first = first_places(mask)
    position = first if pooling == "bos" else first + mask.sum(1) - 1
    return states[torch.arange(len(states), device=states.device), position]


def _mean_over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    real = mask.to(values.dtype)[..., None]
    return (values * real).sum(1) / real.sum(1)


def _draw_weights(head: nn.Module) -> None:
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=_SPREAD)
            nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Reading:
    """Options of reading texts: prompt, length, pooling, and the token that carries a word's label."""

    prompt: str = ""
    max_length: int | None = None
    pooling: str = "mean"
    previous: bool = False
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class TaskInput:
    """Input of a row: its texts (several for choices and windows) and its target.

    `places` has for each word the position of the token that carries its label, or -1 if the word was cut
    off. `windows` locate the tokens of a passage.
    """

    texts: tuple[TokenisedText, ...]
    target: Any
    places: tuple[int, ...] = ()
    windows: tuple[LocatedText, ...] = ()


class Kind:
    """Kind of task; `head` returns a new head, initialised from torch's generator."""

    def __init__(self, data: TaskData, reading: Reading) -> None:
        self.data = data
        self.reading = reading
        self.numbers = {label: number for number, label in enumerate(data.classes)}

    def head(self, width: int) -> nn.Module:
        """Return a new head for hidden states of this width."""
        outputs = max(1, len(self.data.classes))
        return TextHead(width, outputs, self.reading.pooling, self.reading.dropout)

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        """Return the model's input for each row."""
        texts = self.tokenise(encoder, [r.text for r in rows], [r.second for r in rows])
        return [TaskInput((text,), self.target(row)) for text, row in zip(texts, rows, strict=True)]

    def tokenise(
        self, encoder: TokenEncoder, texts: Sequence[str], seconds: Sequence[str | None]
    ) -> list[TokenisedText]:
        """Return the tokens of texts or pairs of texts.

        With images or clips among the task's rows a pair is one input, whose parts are those of both texts.
        """
        if not self.data.has_media:
            return [text.tokens for text in self.locate(encoder, texts, seconds)]
        return encoder.tokenise(
            [_join_pair(*pair) for pair in zip(texts, seconds, strict=True)],
            prompt=self.reading.prompt,
            max_length=self.reading.max_length,
        )

    def locate(
        self, encoder: TokenEncoder, texts: Sequence[str], seconds: Sequence[str | None]
    ) -> list[LocatedText]:
        """Return the texts or pairs of texts with the positions of their tokens."""
        pairs = [second for second in seconds if second is not None]
        return encoder.locate(
            texts,
            pairs if pairs else None,
            prompt=self.reading.prompt,
            max_length=self.reading.max_length,
        )

    def target(self, row: TaskRow) -> Any:
        """Return the target of a row."""
        raise NotImplementedError

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        """Return the mean loss of a batch from its logits and mask."""
        raise NotImplementedError

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        """Return a prediction for each row, as plain values."""
        raise NotImplementedError


class Classification(Kind):
    """Kind of task with one of several classes for each text or pair."""

    def target(self, row: TaskRow) -> int:
        return self.numbers[str(row.gold)]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.float(), _build_int_tensor([item.target for item in batch], logits)
        )

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        classes: list[Any] = logits.argmax(-1).tolist()
        return classes


class Regression(Kind):
    """Kind of task with a number for each text or pair; the loss is the squared error."""

    def target(self, row: TaskRow) -> Any:
        return row.gold

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        gold = torch.tensor([item.target for item in batch], device=logits.device)
        return F.mse_loss(logits[:, 0].float(), gold.float())

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        values: list[Any] = logits[:, 0].float().nan_to_num().tolist()
        return values


class Words(Kind):
    """Kind of task with a class for each word, predicted at its first token or the token before it."""

    def head(self, width: int) -> nn.Module:
        return TokenHead(width, len(self.data.classes), self.reading.dropout)

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        located = self.locate(encoder, [row.text for row in rows], [None])
        (empty,) = encoder.tokenise([""], prompt="", max_length=None)
        read = [
            self._build_input(item, row, empty.ids[0])
            for item, row in zip(located, rows, strict=True)
        ]
        # A batch of texts without a labelled token would have no loss.
        return [item for item in read if max(item.places, default=-1) >= 0] if training else read

    def _build_input(self, located: LocatedText, row: TaskRow, begin: int) -> TaskInput:
        gold = row.gold if isinstance(row.gold, tuple) else ()
        target = tuple(self.numbers[label] for label in gold)
        places, tokens = _find_first_tokens(located, row.words), located.tokens
        if self.reading.previous:
            if 0 in places:  # nothing is before the first token of a tokenizer without special ones
                tokens = TokenisedText([begin, *tokens.ids])
                places = [position + 1 if position >= 0 else position for position in places]
            places = [position - 1 if position >= 0 else position for position in places]
        return TaskInput((tokens,), target, tuple(places))

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        rows, places = self._locate_labels(batch, mask)
        gold = [
            t for item in batch for t, p in zip(item.target, item.places, strict=True) if p >= 0
        ]
        return F.cross_entropy(logits[rows, places].float(), _build_int_tensor(gold, logits))

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        classes = iter(logits[self._locate_labels(batch, mask)].argmax(-1).tolist())
        return [[next(classes) if p >= 0 else _MISSED for p in item.places] for item in batch]

    def _locate_labels(self, batch: Sequence[TaskInput], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows, positions) in the batch of all labelled tokens."""
        first = first_places(mask).tolist()
        pairs = [
            (row, first[row] + position)
            for row, item in enumerate(batch)
            for position in item.places
            if position >= 0
        ]
        return _build_int_tensor([row for row, _ in pairs], mask), _build_int_tensor(
            [p for _, p in pairs], mask
        )


class Spans(Kind):
    """Kind of task with a question's answer in a passage; long passages are cut into windows."""

    def head(self, width: int) -> nn.Module:
        return TokenHead(width, 2, self.reading.dropout)

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        located = encoder.locate(
            [row.text for row in rows],
            [row.second or "" for row in rows],
            prompt=self.reading.prompt,
            max_length=self.reading.max_length,
            stride=_STRIDE,
        )
        windows: list[list[LocatedText]] = [[] for _ in rows]
        for passage_window in located:
            windows[passage_window.row].append(passage_window)
        if not training:
            return [
                TaskInput(tuple(w.tokens for w in many), None, (), tuple(many)) for many in windows
            ]
        return [
            TaskInput((window.tokens,), _find_answer_tokens(window, row.gold))
            for row, many in zip(rows, windows, strict=True)
            for window in many
        ]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        scores = _mask_padding(logits, mask)
        gold = (
            _build_int_tensor([item.target for item in batch], logits) + first_places(mask)[:, None]
        )
        return (
            F.cross_entropy(scores[..., 0], gold[:, 0])
            + F.cross_entropy(scores[..., 1], gold[:, 1])
        ) / 2

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        scores, first = _mask_padding(logits, mask), first_places(mask).tolist()
        answers, row = [], 0
        for item, question in zip(batch, rows, strict=True):
            best = (float("-inf"), 0, 0)
            for window in item.windows:
                window_scores = scores[row, first[row] : first[row] + len(window.part)]
                best = max(best, _find_best_span(window_scores, window))
                row += 1
            answers.append((question.second or "")[best[1] : best[2]])
        return answers


class MultipleChoice(Kind):
    """Kind of task with one of several choices for each row: the one with the highest logit."""

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        asked = [
            row.text if row.second is None else f"{row.text}\n{row.second}"
            for row in rows
            for _ in row.choices
        ]
        texts = iter(self.tokenise(encoder, asked, [c for row in rows for c in row.choices]))
        return [TaskInput(tuple(next(texts) for _ in row.choices), row.gold) for row in rows]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        parts = self._split_by_row(logits, batch)
        losses = [
            F.cross_entropy(part[None], _build_int_tensor([item.target], logits))
            for part, item in zip(parts, batch, strict=True)
        ]
        return torch.stack(losses).mean()

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        return [int(part.argmax()) for part in self._split_by_row(logits, batch)]

    def _split_by_row(self, logits: Tensor, batch: Sequence[TaskInput]) -> Sequence[Tensor]:
        return torch.split_with_sizes(logits[:, 0].float(), [len(item.texts) for item in batch])


_KINDS: dict[str, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": Words,
    "span": Spans,
    "choice": MultipleChoice,
}


def kind_of(data: TaskData, reading: Reading) -> Kind:
    """Return the kind for a task's head."""
    return _KINDS[data.entry.head](data, reading)


def _join_pair(text: str, second: str | None) -> str:
    """Return a text and its second one as one input; a line break is between two parts of text."""
    if second is None:
        return text
    before, after = split_parts(text)[-1:], split_parts(second)[:1]
    touching = all(isinstance(part, str) for part in (*before, *after))
    return f"{text}\n{second}" if touching else text + second


def _build_int_tensor(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _find_first_tokens(located: LocatedText, words: Sequence[tuple[int, int]]) -> list[int]:
    """Return the position of each word's first token, -1 for a word without tokens."""
    places = [-1] * len(words)
    word = 0
    for position, (part, start, end) in enumerate(
        zip(located.part, located.start, located.end, strict=True)
    ):
        if part != 0:
            continue
        while word < len(words) and words[word][1] <= start:
            word += 1
        # A token may begin with the space before its word, and may cover several words.
        for reached in range(word, len(words)):
            if words[reached][0] >= end:
                break
            if places[reached] < 0 and words[reached][1] > words[reached][0]:
                places[reached] = position
    return places


def _find_answer_tokens(window: LocatedText, gold: Any) -> tuple[int, int]:
    """Return the positions of the answer's first and last token, or (0, 0) if the window has no answer."""
    assert isinstance(gold, Answers)
    begin, end = gold.start, gold.start + len(gold.texts[0])
    inside = [
        position
        for position, part in enumerate(window.part)
        if part == 1 and window.start[position] < end and window.end[position] > begin
    ]
    # A window at whose edge the answer is cut has only a part of the answer.
    whole = inside and window.start[inside[0]] <= begin and window.end[inside[-1]] >= end
    return (inside[0], inside[-1]) if whole else (0, 0)


def _find_best_span(scores: Tensor, window: LocatedText) -> tuple[float, int, int]:
    """Return (score, first character, last character) of the best span in a window's passage."""
    positions = [position for position, part in enumerate(window.part) if part == 1]
    if not positions:
        return float("-inf"), 0, 0
    position_tensor = torch.tensor(positions, device=scores.device)
    sums = scores[position_tensor, 0][:, None] + scores[position_tensor, 1][None]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(_LONGEST_ANSWER - 1)
    best = int(sums.masked_fill(~allowed, float("-inf")).argmax())
    first, last = divmod(best, len(positions))
    return float(sums[first, last]), window.start[positions[first]], window.end[positions[last]]


def _mask_padding(logits: Tensor, mask: Tensor) -> Tensor:
    """Return logits in float32; logits of padding are so low that softmax gives them zero."""
    return logits.float().masked_fill(mask[..., None] == 0, torch.finfo(torch.float32).min)
