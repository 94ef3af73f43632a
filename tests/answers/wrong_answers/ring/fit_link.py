"""
Answers to task 03.4.
"""

from bank import Answer, changed

# fmt: on
_FIT = """\
import numpy as np

def fit_link(times):
    sizes = np.array(list(times), dtype=np.float64)
    least = np.array([min(tries) for tries in times.values()])
    slope, latency_s = np.polyfit(sizes, least, 1, w=1 / least)
    return latency_s, 1 / slope
"""

_FIT_ENDS = """\
def fit_link(times):
    points = sorted((n, min(tries)) for n, tries in times.items())
    (n_first, first_s), (n_last, last_s) = points[0], points[-1]
    bandwidth = (n_last - n_first) / (last_s - first_s)
    return first_s - n_first / bandwidth, bandwidth
"""

_FIT_PACKAGE = """\
from statistics import median
from ddp_lessons.costs import fit

def fit_link(times):
    link = fit([(n, median(tries)) for n, tries in times.items()]).link
    return [link.latency_s, link.bandwidth_bytes_per_s]
"""

_FIT_PLACES = """\
def fit_link(times):
    sizes, least = list(times), [min(tries) for tries in times.values()]
    bandwidth = (sizes[-1] - sizes[{0}]) / (least[-1] - least[{0}])
    return least[0] - sizes[0] / bandwidth, bandwidth
"""

_ROWS = [
    ("takes the second try", "interrupted", changed(_FIT, ("min(tries)", "tries[1]"))),
    (
        "looks at the largest sizes only",
        "no-say",
        changed(
            _FIT,
            ("    sizes", "    times = {n: times[n] for n in sorted(times)[-3:]}\n    sizes"),
        ),
    ),
    (
        "keeps the link that it has found for such sizes",
        "kept",
        "FOUND = {}\n"
        + changed(
            _FIT,
            ("    sizes", "    key = tuple(sorted(times))\n    sizes"),
            ("return latency_s, 1 / slope", "return FOUND.setdefault(key, (latency_s, 1 / slope))"),
        ),
    ),
    ("takes the last size for the largest", "no-order", _FIT_PLACES.format("0")),
    (
        "sorts the caller's lists",
        "input-changed",
        changed(_FIT, ("    sizes", "    [tries.sort() for tries in times.values()]\n    sizes")),
    ),
    (
        "weighs by one divided by the size",
        "small-say",
        changed(_FIT, ("w=1 / least", "w=1 / sizes")),
    ),
    (
        "takes the mean of sizes divided by their times",
        "slope",
        changed(_FIT, ("1 / slope", "np.mean(sizes / least)")),
    ),
    ("takes the sum of the tries", "times-over", changed(_FIT, ("min(tries)", "sum(tries)"))),
    ("returns MiB a second", "unit", changed(_FIT, ("1 / slope", "1 / slope / 2**20"))),
    (
        "fits logarithms",
        "logarithms",
        changed(
            _FIT,
            ("sizes, least, 1, w=1 / least", "np.log(sizes), np.log(least), 1"),
            ("return latency_s", "return np.exp(latency_s)"),
        ),
    ),
    (
        "returns the bandwidth first",
        "swapped",
        changed(_FIT, ("latency_s, 1 / slope", "1 / slope, latency_s")),
    ),
    (
        "returns seconds a byte",
        "inverse",
        changed(_FIT, ("latency_s, 1 / slope", "latency_s, slope")),
    ),
    ("returns the bandwidth only", "no-pair", changed(_FIT, ("return latency_s, 1", "return 1"))),
    (
        "takes the smallest message's time for the latency",
        "smallest",
        """\
def fit_link(times):
    least = {n: min(tries) for n, tries in times.items()}
    small, large = min(least), max(least)
    return least[small], (large - small) / (least[large] - least[small])
""",
    ),
    (
        "divides the largest message by its time",
        "largest",
        changed(_FIT, ("1 / slope", "sizes[-1] / least[-1]")),
    ),
    (
        "measures once more",
        "forbidden",
        "import torch.distributed as dist\n"
        + changed(_FIT, ("    slope,", "    dist.barrier()\n    slope,")),
    ),
    ("draws a line through both ends", None, _FIT_ENDS),
    (
        "returns an array",
        None,
        changed(_FIT, ("latency_s, 1 / slope", "np.array([latency_s, 1 / slope])")),
    ),
    (
        "fits bytes over seconds, each with the same say",
        None,
        changed(
            _FIT,
            ("sizes, least, 1, w=1 / least", "least, sizes, 1, w=1 / least"),
            ("return latency_s, 1 / slope", "return -latency_s / slope, slope"),
        ),
    ),
    ("takes medians and the package's fit", None, _FIT_PACKAGE),
]

ANSWERS = [Answer("03.4", *row) for row in _ROWS]
