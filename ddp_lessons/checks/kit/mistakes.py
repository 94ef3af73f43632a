"""
The class of a mistake, and the mistakes that any answer can make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.checks.kit.mistake_choice import View


@dataclass(frozen=True)
class Mistake:
    """
    One mistake that learners make in a task: its name, its hint, and how it is recognised.

    `gives` or `shows` recognises it in an answer that ended, `raises` in an answer that raised. A
    mistake that has none of the three only gives another hint to a mistake of COMMON, such as
    "deadlock". `VALUES` has none of the three either.

    Args:
        name: Its name, such as "average"; unique in the task.
        hint: A sentence on what the learner should think of or do, without the solution.
        symptom: A sentence that says what is wrong with the answer's value or calls.
        gives: Function (case, rank) that returns a list of values. An answer with this mistake
            gives one of them on that rank. They are compared as the right value is, and only if the
            answer's value is wrong.
        shows: Function of a `View`. It returns True, or a sentence that replaces the symptom, if
            this rank shows the mistake; else something false. It is also called if the value is
            right.
        raises: Texts. An answer with this mistake raises an error that has one of them in its name
            or message.

    Raises:
        BadInput: It has no hint, or both `gives` and `shows`.
    """

    name: str
    hint: str
    symptom: str = "This is not the expected result."
    gives: Callable[[Case, int], Iterable[object]] | None = None
    shows: Callable[[View], object] | None = None
    raises: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.hint:
            raise BadInput(
                f"No hint: a mistake must have one (got {self.name!r} without). Say what the "
                "learner should think of."
            )
        if self.gives and self.shows:
            raise BadInput(
                "Unclear mistake: either `gives` or `shows` must recognise it (got both for "
                f"{self.name!r}). Keep one of the two."
            )

    @property
    def has_sign(self) -> bool:
        """
        Whether the mistake has a way to be recognised.
        """
        return bool(self.gives or self.shows or self.raises)


COMMON = {
    "missing": "Run the cell that defines your answer, with %%px as its first line: every rank "
    "needs the answer.",
    "blank": "Replace the line that raises NotImplementedError by your own code, run that cell, "
    "and run this one again.",
    "replaced": "Put torch's own functions back: ranks.stop(), then run the notebook from the top.",
    "forbidden": "Read in the task which calls you may use.",
    "raised": "If the message names a line, it is a line of your answer: for which world sizes and "
    "lengths does the line fail? If the message names no line, compare the parameters of your "
    "function with the task.",
    "signature": "Compare the first line of your function with the task: it must take the "
    "arguments that the task names, in their order.",
    "undefined": "Define or import each name that your answer uses in the cell of the answer: "
    "ranks do not have the variables of the notebook.",
    "more-ranks": "The answer is right on fewer ranks. Compute what each rank does from its rank "
    "and the world size, so that the answer works on any number of ranks.",
    "died": "A rank's process ended: your answer ended it by exit or kill, or torch ended it, "
    "which happens if ranks make one call with tensors of different sizes.",
    "late": "Find the line that does not finish on some rank or for some size: a loop, or a wait "
    "for a message that never comes.",
    "deadlock": "Write down the calls of each rank, in order, and find the call that no other rank "
    "answers.",
    "mismatch": "All ranks of a group must make the same collective calls in the same order.",
    "nothing": "End the function with a return statement.",
    "unwaited": "Keep the handle that the call returned, and wait for it before you return.",
    "left-running": "A thread still runs after the call that has started it. Join the thread, or "
    "shut its pool down, before you return.",
    "unreceived": "Count the messages that each rank sends and receives: every send needs a recv.",
    "input-changed": "Work on a copy: clone() of a tensor, list() of a list.",
    "kept": "Create results and counts anew in each call: keep nothing from one call to the next.",
    "left-changed": "Leave the arguments as they were, or restore them before you return.",
    "store": "Ranks may communicate only by the calls that the task allows, in the group that "
    "exists. Create no group, and write nothing to the store.",
    "view": "Return a new tensor, which does not share memory with the argument.",
    "group-left": "The group must still exist when your answer returns: do not leave it.",
    "dtype": "Create new tensors with the dtype of the argument.",
    "own-order": "Each process that torchrun starts hashes texts with its own seed, and tensors, "
    "dtypes and most other objects by their address in memory. So a set has another order on each "
    "rank, and `hash` returns other numbers. Sort the items, or keep a list.",
    "shape": "Compare the shape of your result with the shape that the task asks for.",
    "values": "Take the case and the call that the message names, and go through your lines with a "
    "pencil: what does each rank hold after each line?",
}
"""
{name: hint} of the mistakes that any answer can make. A task may have other hints for them.
"""

VALUES = Mistake("values", COMMON["values"])
"""
The general mistake: a value other than the right one, for any reason.

In a task's tuple it marks a position. Mistakes above it explain wrong values. Mistakes below it are
tried only if every value is right.
"""

LEFT_UNDER_WAY = ("unwaited", "unreceived", "raised", "store")
"""
Mistakes after which messages may still be under way in the group, or keys may be left in its store.
The same is true of each mistake that a task recognises by `raises`.
"""
