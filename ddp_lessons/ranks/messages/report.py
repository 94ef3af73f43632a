"""
A rank agent's report on a cell, which travels in the reply to that cell.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_REPORT = "ddp_lessons"  # the entry of a reply's content, and of an error's engine_info


@dataclass(frozen=True)
class CellReport:
    """
    How a cell ended on one rank.

    Args:
        released: Whether the cell ended because the rank was released.
        digest: Hash of the rank's collectives in a cell that raised nothing; "" if it called none.
        text: The error's text; "" if the cell raised nothing.
        line, code: Line of the cell, from 1, that raised the error, and its text; else None and "".
        has_said_all: Whether no output can come after the reply.
        enclosed: Plain data that the cell's code gave to `RankAgent.enclose`, or None.
    """

    released: bool = False
    digest: str = ""
    text: str = ""
    line: int | None = None
    code: str = ""
    has_said_all: bool = False
    enclosed: Any = None


def add_report(report: CellReport, reply: dict[str, Any]) -> None:
    """
    Add a report to the reply to a cell.

    Args:
        report: The report.
        reply: The reply's content, which is changed in place.
    """
    # ipyparallel's client keeps a reply's content and an error's engine_info, not metadata.
    content = asdict(report)
    reply[_REPORT] = content
    if "engine_info" in reply:
        reply["engine_info"][_REPORT] = content


def report_in(content: Mapping[str, Any]) -> CellReport | None:
    """
    Return the report in a reply's content or in an error's engine_info.

    Returns:
        CellReport or None: None if the reply is not that of a rank agent.
    """
    return CellReport(**content[_REPORT]) if _REPORT in content else None
