"""
Fetch the next batch while the model works on this one.

Legend: l seconds to load a batch, s seconds of a step. One after the other each step takes l + s;
fetched ahead, the longer of the two.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Batch = TypeVar("_Batch")
_END = object()


def fetched_ahead(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """
    Yield batches, each of which was loaded while the one before it was in use.

    One thread loads one batch ahead. A DataLoader with workers does so in processes of its own, and
    some batches ahead.

    Args:
        batches: Any iterable; its `next` runs in the thread.

    Source: torch.utils.data documentation, `num_workers` and `prefetch_factor`. Lesson: 11_speed.
    """
    iterator = iter(batches)
    with ThreadPoolExecutor(max_workers=1) as fetcher:
        coming = fetcher.submit(next, iterator, _END)
        while (batch := coming.result()) is not _END:
            coming = fetcher.submit(next, iterator, _END)
            yield batch  # type: ignore[misc]  # it is not _END
