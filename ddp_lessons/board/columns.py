"""
What the board has columns for: the sections of lessons and the tasks of exercises.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """
    Hold one column.

    Args:
        kind: "section" or "task".
        key: The name of the section's prediction, or the task's number.
        stem: Such as "02_collectives".
        label: What stands above the column, such as "02.1".
        title: What it is about.
        question: Of a section: what is to be foretold.
        hints: Of a task: name of a mistake -> its hint.
    """

    kind: str
    key: str
    stem: str
    label: str
    title: str
    question: str = ""
    hints: dict = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Row:
    """
    Hold what is known of one learner, or of one pair.

    Args:
        name: What they are called on the board.
        state: As `progress.state` has it.
        heard_s: When it came, by the board's clock, in seconds since 1970.
        ahead_s: Seconds by which the board's clock is ahead of that of the state's times.
        is_live: Whether they are at work now, so that they can be stuck.
        key: What the board's `People` know it by, "" where it cannot be removed.
    """

    name: str
    state: dict
    heard_s: float
    ahead_s: float = 0.0
    is_live: bool = True
    key: str = ""
