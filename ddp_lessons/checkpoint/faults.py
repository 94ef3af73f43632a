"""
Errors in saving or loading a checkpoint, and how every rank learns of them.

Legend: rank r of w, where w is the size of the group.
"""

from typing import TypeVar

import torch.distributed as dist

from ddp_lessons.errors import DDPLessonsError, SaveFailed

_Thing = TypeVar("_Thing")


def place(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """
    Return (rank, world_size) within a group; (0, 1) in a process that has joined none.

    Args:
        group: The process group; None is the default group.
    """
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def in_words(error: BaseException) -> str:
    """
    Return an error as one short line without paths or addresses.
    """
    # torch's CheckpointException holds the error of each rank; the first says what happened.
    for first, _ in getattr(error, "failures", {}).values():
        return in_words(first)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = (str(error).splitlines() or [""])[0][:120].rstrip(".")
    return (
        line
        if isinstance(error, DDPLessonsError)
        else f"{type(error).__name__}: {line}".rstrip(": ")
    )


def from_all(thing: _Thing, group: dist.ProcessGroup | None = None) -> list[_Thing]:
    """
    Return on every rank what each rank gave, in rank order.

    Collective: every rank must call it.

    Args:
        thing: An object that pickle can write.
        group: The process group; None is the default group, or no group at all.
    """
    things = [thing] * place(group)[1]
    if dist.is_initialized():
        dist.all_gather_object(things, thing, group=group)
    return things


def first_of_all(words: str | None, group: dist.ProcessGroup | None = None) -> str | None:
    """
    Return on every rank what the lowest rank said that said anything, or None.

    Collective: every rank must call it. Arguments as for `from_all`.
    """
    return next((said for said in from_all(words, group) if said is not None), None)


def agree(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """
    Return on every rank once all ranks have come, or raise on every rank if one had an error.

    A rank that just raised would leave the others waiting in the next collective. So each rank
    first says how it fared. This is the barrier of a save as well: who returns knows that all
    ranks have done their part.

    Collective: every rank must call it, above all one that has failed.

    Args:
        error: The exception that this rank caught, or None.
        group: The process group; None is the default group.

    Raises:
        SaveFailed: Some rank had an error. The message names the lowest such rank.
        BaseException: This rank's own, if it is no Exception, such as KeyboardInterrupt.

    Lesson: 08_checkpoint.
    """
    words = from_all(None if error is None else in_words(error), group)
    if error is not None and not isinstance(error, Exception) and not hasattr(error, "failures"):
        raise error  # but not a CheckpointException, which is no Exception either
    failed = [number for number, said in enumerate(words) if said is not None]
    if failed:
        raise SaveFailed(
            f"checkpoint not saved: expected every rank to finish its part (got "
            f"{words[failed[0]]}, rank {failed[0]} of {len(words)}). Earlier checkpoints are "
            f"whole; mend the cause and save again."
        ) from error
