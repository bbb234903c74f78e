"""Memory is used again only when nobody looks at it any more."""

from __future__ import annotations

import threading

import torch
from emberge.numerics import take_tensor_like

LIKE = torch.zeros(3, 50_000)


def test_a_pooled_tensor_has_the_dtype_and_shape_of_another() -> None:
    for like in (LIKE, LIKE.double(), LIKE.mT, torch.zeros(2, 0), torch.zeros(())):
        found = take_tensor_like(like)
        assert found.shape == like.shape
        assert found.dtype == like.dtype
        assert found.is_contiguous()
    assert take_tensor_like(LIKE, (7, 9000)).shape == (7, 9000)


def test_memory_in_use_is_not_handed_out() -> None:
    first = take_tensor_like(LIKE)
    part, place = first[1], first.data_ptr()
    del first
    assert take_tensor_like(LIKE).data_ptr() != place, "a view still looks at it"
    numbers = part.numpy()
    del part
    assert take_tensor_like(LIKE).data_ptr() != place, "an array still looks at it"
    del numbers
    assert place in [held.data_ptr() for held in [take_tensor_like(LIKE) for _ in range(3)]]


def test_memory_that_is_free_is_used_again() -> None:
    places = {take_tensor_like(LIKE).data_ptr() for _ in range(50)}
    assert len(places) == 1
    # It is large enough for fewer rows, too, and not twice too large.
    assert take_tensor_like(LIKE, (2, 50_000)).data_ptr() in places


def test_each_thread_has_its_own() -> None:
    mine = take_tensor_like(LIKE).data_ptr()
    theirs: list[int] = []
    other = threading.Thread(target=lambda: theirs.append(take_tensor_like(LIKE).data_ptr()))
    other.start()
    other.join()
    assert theirs != [mine]


def test_memory_of_smaller_blocks_is_replaced_by_larger() -> None:
    from emberge.numerics import buffers

    sizes: list[int] = []

    def work() -> None:
        for rows in (3, 30, 300):
            held = [take_tensor_like(LIKE, (rows, 50_000)) for _ in range(2)]
            del held
        sizes.extend(map(len, buffers._THREAD_BUFFERS.pool))

    thread = threading.Thread(target=work)  # its pool is empty, whatever ran before
    thread.start()
    thread.join()
    assert sum(sizes) <= 2 * 300 * 50_000 * 4
