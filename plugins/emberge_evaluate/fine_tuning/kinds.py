"""Kinds of task: the inputs of a row, the loss of a batch, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from emberge import TokenisedText
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

    With `late` pooling it is on each token, and the mean is that of logits (EuroBERT, arXiv:2503.05500).
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
        found: Tensor = self.out(self.dropout(self.activation(self.dense(states))))
        return found


class TokenHead(nn.Module):
    """Dropout and a linear layer on each token's hidden state."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        _draw_weights(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits [b, t, c] of hidden states [b, t, d]."""
        found: Tensor = self.out(self.dropout(states))
        return found


def first_places(mask: Tensor) -> Tensor:
    """Return the place [b] of each text's first token, which is not 0 where padding is on the left."""
    return mask.argmax(1)


def _pool_states(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "mean":
        return _mean_over_tokens(states, mask)
    first = first_places(mask)
    place = first if pooling == "bos" else first + mask.sum(1) - 1
    return states[torch.arange(len(states), device=states.device), place]


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
    """Options of reading texts: prompt, length, pooling, and the token that a word's label is on."""

    prompt: str = ""
    max_length: int | None = None
    pooling: str = "mean"
    previous: bool = False
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class TaskInput:
    """Input of a row: its texts (several for choices and windows) and its target.

    `places` are the tokens that words' labels are on, -1 for a word that was cut off. `windows` locate the
    tokens of a passage.
    """

    texts: tuple[TokenisedText, ...]
    target: Any
    places: tuple[int, ...] = ()
    windows: tuple[LocatedText, ...] = ()


class Kind:
    """A kind of task; `head` is fresh, and drawn from torch's generator."""

    def __init__(self, data: TaskData, reading: Reading) -> None:
        self.data = data
        self.reading = reading
        self.numbers = {label: number for number, label in enumerate(data.classes)}

    def head(self, width: int) -> nn.Module:
        """Return a fresh head for hidden states of a width."""
        outputs = max(1, len(self.data.classes))
        return TextHead(width, outputs, self.reading.pooling, self.reading.dropout)

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        """Return rows as the model reads them."""
        located = self.locate(encoder, [r.text for r in rows], [r.second for r in rows])
        return [
            TaskInput((one.tokens,), self.target(row))
            for one, row in zip(located, rows, strict=True)
        ]

    def locate(
        self, encoder: TokenEncoder, texts: Sequence[str], seconds: Sequence[str | None]
    ) -> list[LocatedText]:
        """Return texts, or pairs of texts, with the places of their tokens."""
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
        """Return the mean loss of a batch whose texts the logits and the mask are of."""
        raise NotImplementedError

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        """Return a prediction for each row, as plain values."""
        raise NotImplementedError


class Classification(Kind):
    """One of several classes for each text or pair."""

    def target(self, row: TaskRow) -> int:
        return self.numbers[str(row.gold)]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), _int_tensor([one.target for one in batch], logits))

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        found: list[Any] = logits.argmax(-1).tolist()
        return found


class Regression(Kind):
    """A number for each text or pair, by its squared error."""

    def target(self, row: TaskRow) -> Any:
        return row.gold

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        gold = torch.tensor([one.target for one in batch], device=logits.device)
        return F.mse_loss(logits[:, 0].float(), gold.float())

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        found: list[Any] = logits[:, 0].float().nan_to_num().tolist()
        return found


class Words(Kind):
    """A class for each word, read from its first token or the token before that."""

    def head(self, width: int) -> nn.Module:
        return TokenHead(width, len(self.data.classes), self.reading.dropout)

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        located = self.locate(encoder, [row.text for row in rows], [None])
        (empty,) = encoder.tokenise([""], prompt="", max_length=None)
        read = [
            self._build_input(one, row, empty.ids[0])
            for one, row in zip(located, rows, strict=True)
        ]
        # A batch of texts without a labelled token would have no loss.
        return [one for one in read if max(one.places, default=-1) >= 0] if training else read

    def _build_input(self, located: LocatedText, row: TaskRow, begin: int) -> TaskInput:
        gold = row.gold if isinstance(row.gold, tuple) else ()
        target = tuple(self.numbers[label] for label in gold)
        places, tokens = _first_tokens(located, row.words), located.tokens
        if self.reading.previous:
            if 0 in places:  # nothing is before the first token of a tokenizer without special ones
                tokens = TokenisedText([begin, *tokens.ids])
                places = [place + 1 if place >= 0 else place for place in places]
            places = [place - 1 if place >= 0 else place for place in places]
        return TaskInput((tokens,), target, tuple(places))

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        rows, places = self._locate_labels(batch, mask)
        gold = [t for one in batch for t, p in zip(one.target, one.places, strict=True) if p >= 0]
        return F.cross_entropy(logits[rows, places].float(), _int_tensor(gold, logits))

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        found = iter(logits[self._locate_labels(batch, mask)].argmax(-1).tolist())
        return [[next(found) if p >= 0 else _MISSED for p in one.places] for one in batch]

    def _locate_labels(self, batch: Sequence[TaskInput], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return row and place in the batch of every labelled token."""
        first = first_places(mask).tolist()
        pairs = [
            (row, first[row] + place)
            for row, one in enumerate(batch)
            for place in one.places
            if place >= 0
        ]
        return _int_tensor([row for row, _ in pairs], mask), _int_tensor(
            [p for _, p in pairs], mask
        )


class Spans(Kind):
    """The answer to a question in a passage, which long passages are cut into windows for."""

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
        for one in located:
            windows[one.row].append(one)
        if not training:
            return [
                TaskInput(tuple(w.tokens for w in many), None, (), tuple(many)) for many in windows
            ]
        return [
            TaskInput((window.tokens,), _answer_tokens(window, row.gold))
            for row, many in zip(rows, windows, strict=True)
            for window in many
        ]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        scores = _mask_padding(logits, mask)
        gold = _int_tensor([one.target for one in batch], logits) + first_places(mask)[:, None]
        return (
            F.cross_entropy(scores[..., 0], gold[:, 0])
            + F.cross_entropy(scores[..., 1], gold[:, 1])
        ) / 2

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        scores, first = _mask_padding(logits, mask), first_places(mask).tolist()
        found, row = [], 0
        for one, asked in zip(batch, rows, strict=True):
            best = (float("-inf"), 0, 0)
            for window in one.windows:
                own = scores[row, first[row] : first[row] + len(window.part)]
                best = max(best, _best_span(own, window))
                row += 1
            found.append((asked.second or "")[best[1] : best[2]])
        return found


class MultipleChoice(Kind):
    """One of the choices of each row: the head gives each a number, and the highest is taken."""

    def inputs(
        self, encoder: TokenEncoder, rows: Sequence[TaskRow], *, training: bool
    ) -> list[TaskInput]:
        asked = [
            row.text if row.second is None else f"{row.text}\n{row.second}"
            for row in rows
            for _ in row.choices
        ]
        located = iter(self.locate(encoder, asked, [c for row in rows for c in row.choices]))
        return [
            TaskInput(tuple(next(located).tokens for _ in row.choices), row.gold) for row in rows
        ]

    def loss(self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor) -> Tensor:
        parts = self._split_by_row(logits, batch)
        losses = [
            F.cross_entropy(part[None], _int_tensor([one.target], logits))
            for part, one in zip(parts, batch, strict=True)
        ]
        return torch.stack(losses).mean()

    def predictions(
        self, logits: Tensor, batch: Sequence[TaskInput], mask: Tensor, rows: Sequence[TaskRow]
    ) -> list[Any]:
        return [int(part.argmax()) for part in self._split_by_row(logits, batch)]

    def _split_by_row(self, logits: Tensor, batch: Sequence[TaskInput]) -> Sequence[Tensor]:
        return torch.split_with_sizes(logits[:, 0].float(), [len(one.texts) for one in batch])


_KINDS: dict[str, type[Kind]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": Words,
    "span": Spans,
    "choice": MultipleChoice,
}


def kind_of(data: TaskData, reading: Reading) -> Kind:
    """Return the kind of a task."""
    return _KINDS[data.entry.head](data, reading)


def _int_tensor(values: Sequence[Any], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _first_tokens(located: LocatedText, words: Sequence[tuple[int, int]]) -> list[int]:
    """Return the place of each word's first token, -1 for a word without one."""
    places = [-1] * len(words)
    word = 0
    for place, (part, start, end) in enumerate(
        zip(located.part, located.start, located.end, strict=True)
    ):
        if part != 0:
            continue
        while word < len(words) and words[word][1] <= start:
            word += 1
        # A token may begin with the space before its word, and reach over several words.
        for reached in range(word, len(words)):
            if words[reached][0] >= end:
                break
            if places[reached] < 0 and words[reached][1] > words[reached][0]:
                places[reached] = place
    return places


def _answer_tokens(window: LocatedText, gold: Any) -> tuple[int, int]:
    """Return the first and the last token of the answer, or the first token twice where it is not there."""
    assert isinstance(gold, Answers)
    begin, end = gold.start, gold.start + len(gold.texts[0])
    inside = [
        place
        for place, part in enumerate(window.part)
        if part == 1 and window.start[place] < end and window.end[place] > begin
    ]
    # A window that cuts the answer has only a part of it.
    whole = inside and window.start[inside[0]] <= begin and window.end[inside[-1]] >= end
    return (inside[0], inside[-1]) if whole else (0, 0)


def _best_span(scores: Tensor, window: LocatedText) -> tuple[float, int, int]:
    """Return the highest score of a span of a window's passage, and its first and last character."""
    places = [place for place, part in enumerate(window.part) if part == 1]
    if not places:
        return float("-inf"), 0, 0
    chosen = torch.tensor(places, device=scores.device)
    sums = scores[chosen, 0][:, None] + scores[chosen, 1][None]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(_LONGEST_ANSWER - 1)
    best = int(sums.masked_fill(~allowed, float("-inf")).argmax())
    first, last = divmod(best, len(places))
    return float(sums[first, last]), window.start[places[first]], window.end[places[last]]


def _mask_padding(logits: Tensor, mask: Tensor) -> Tensor:
    """Return logits in float32, those of padding so low that they have no share."""
    return logits.float().masked_fill(mask[..., None] == 0, torch.finfo(torch.float32).min)
