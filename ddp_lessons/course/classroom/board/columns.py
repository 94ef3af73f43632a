"""
The board's columns, for sections of lessons and tasks of exercises, and its rows, for learners.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """
    One column of the board.

    Args:
        kind: "section" or "task".
        key: The name of the section's prediction, or the task's number.
        stem: The lesson id, such as "02_collectives".
        label: The text above the column, such as "02.1".
        title: Title of the section or the task.
        question: The question for a prediction; "" for a task.
        hints: Dict from the name of a mistake to its hint; {} for a section.
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
    The row of one learner, or of one pair of learners.

    Args:
        name: The learner's name on the board.
        state: The learner's state (see `ddp_lessons.progress.state`).
        heard_s: Time at which the state came, by the board's clock, in seconds since 1970.
        ahead_s: Seconds by which the board's clock is ahead of the learner's clock.
        is_live: Whether the learner is at work now, and so can be stuck.
        key: The row's key in the board's `People`; "" if the row cannot be removed.
        login: The login of a hub's user who has chosen another name; "" for all other rows.
    """

    name: str
    state: dict
    heard_s: float
    ahead_s: float = 0.0
    is_live: bool = True
    key: str = ""
    login: str = ""
