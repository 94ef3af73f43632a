"""
Figures: medians, ratios and limits of measured samples, as a table and as plain data.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

VALUE, RATIO = "value", "ratio"
NUM_COLUMNS = 140
NUMBERS = re.compile(r"\[[-\d\s.,e+]*\]")
"""
The pattern of a list of numbers in JSON.
"""
_STYLES = {"pass": "green", "FAIL": "bold red", "": ""}


@dataclass(frozen=True)
class Figure:
    """
    One line of the table.

    Args:
        name: Name of the measured quantity.
        unit: Unit of the samples: "s", "ms", "MiB", "%" or "".
        samples: One number a round.
        reference_name: Name of the reference that it is compared with, or "".
        reference_samples: The reference's samples, one number a round, or ().
        limit: The largest number that is allowed, or None if the figure is only shown.
        limit_on: "value" or "ratio": the number that the limit is for.
        is_paired: Whether the ratio is the median of the ratios within rounds, which a slow minute
            changes less, and not the ratio of the medians.
    """

    name: str
    unit: str
    samples: tuple
    reference_name: str = ""
    reference_samples: tuple = ()
    limit: float | None = None
    limit_on: str = VALUE
    is_paired: bool = False

    @property
    def value(self):
        """
        The median of the samples.
        """
        return median(self.samples)

    @property
    def reference(self):
        """
        The median of the reference's samples, or None.
        """
        return median(self.reference_samples) if self.reference_samples else None

    @property
    def ratio(self):
        """
        The ratio of the samples to the reference's, or None (see `is_paired`).
        """
        if not self.reference_samples:
            return None
        if self.is_paired:
            pairs = zip(self.samples, self.reference_samples, strict=True)
            return median(ours / theirs for ours, theirs in pairs)
        return self.value / self.reference

    @property
    def verdict(self):
        """
        The verdict: "pass", "FAIL", or "" without a limit. A number equal to the limit passes.
        """
        if self.limit is None:
            return ""
        measured = self.ratio if self.limit_on == RATIO else self.value
        return "pass" if measured is not None and measured <= self.limit else "FAIL"

    def as_data(self):
        """
        Return this figure as plain data, its raw samples included.
        """
        return {
            "name": self.name,
            "unit": self.unit,
            "value": _rounded(self.value),
            "reference_name": self.reference_name,
            "reference": _rounded(self.reference),
            "ratio": _rounded(self.ratio),
            "limit": self.limit,
            "limit_on": self.limit_on if self.limit is not None else None,
            "verdict": self.verdict,
            "samples": [_rounded(sample) for sample in self.samples],
            "reference_samples": [_rounded(sample) for sample in self.reference_samples],
        }


@dataclass(frozen=True)
class Plan:
    """
    A Figure before it is measured: its fields, with the names of samples in place of the samples.
    """

    name: str
    unit: str
    sample: str
    reference_name: str = ""
    reference_sample: str = ""
    limit: float | None = None
    limit_on: str = VALUE
    is_paired: bool = False


def make_figures(plans, samples):
    """
    Make a figure of every plan whose samples were measured.

    Args:
        plans: The Plans, in the order of the table.
        samples: {name of a sample: [its number in each round]}.

    Returns:
        list[Figure]: In the order of the plans.
    """
    return [
        Figure(
            plan.name,
            plan.unit,
            tuple(samples[plan.sample]),
            plan.reference_name,
            tuple(samples.get(plan.reference_sample, ())),
            plan.limit,
            plan.limit_on,
            plan.is_paired,
        )
        for plan in plans
        if samples.get(plan.sample)
    ]


def missed(figures):
    """
    Return the figures that miss their limit.
    """
    return [figure for figure in figures if figure.verdict == "FAIL"]


def show_figures(figures, file=None):
    """
    Print figures as a table.

    Args:
        figures: The Figures.
        file: Where to print; standard output if None.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("What", no_wrap=True)
    for heading in ("Value", "Reference", "Ratio", "Limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("Compared with", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.name,
            _with_unit(figure.value, figure.unit),
            _with_unit(figure.reference, figure.unit),
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            _limit(figure),
            Text(figure.verdict, style=_STYLES[figure.verdict]),
            figure.reference_name,
        )
    # A pipe has no width, and a table that wraps cannot be read.
    Console(file=file, highlight=False, width=NUM_COLUMNS).print(table)


def figures_document(command, machine, figures):
    """
    Return the command, the date, the machine, and every figure with its samples, as plain data.

    Args:
        command: The command line, without paths of this machine.
        machine: The dict that `describe_machine` returned.
        figures: The Figures.
    """
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "figures": [figure.as_data() for figure in figures],
    }


def write_document(path, document):
    """
    Write plain data as JSON, each list of numbers on one line. Make the file's folder if missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1)
    path.write_text(NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n")


def _limit(figure):
    if figure.limit is None:
        return ""
    if figure.limit_on == RATIO:
        return f"ratio {figure.limit:.2f}"
    return f"{figure.limit:g} {figure.unit}"


def _with_unit(number, unit):
    if number is None:
        return ""
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.2f} {unit}"


def _rounded(number):
    return None if number is None else round(number, 4)
