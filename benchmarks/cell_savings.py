"""
Measure what two entries of a cell's request save: those of `ranks/messages/cell_requests.py`.

    python benchmarks/cell_savings.py [--repeats 5]

Each round times cells with both entries, with one of them, and with neither, in the same kernel.
"""

import argparse
import tempfile
from statistics import median

from cells import TIMER
from kernel import running_kernel
from starting import NUM_RANKS, all_reduce_cell, start_cell

from ddp_lessons.ranks.messages.cell_requests import BRIEF, TRANSFORMED

NUM_CELLS = 150
_SOURCES = {
    "x = 1": "x = 1",
    "12 lines": "for i in range(3):\n    y = [j for j in range(10)]\nz = 3\nw = %pwd\n" * 3,
}
_VARIANTS = {
    "both": (BRIEF, TRANSFORMED),
    "without TRANSFORMED": (BRIEF,),
    "without BRIEF": (TRANSFORMED,),
    "neither": (),
}
_SWITCH = """\
from ddp_lessons.ranks.kernel.cell_transport import CellTransport
_init = CellTransport.__init__
def _send_only(entries):
    def init(self, *args):
        _init(self, *args)
        self._metadata = {key: value for key, value in self._metadata.items() if key in entries}
    CellTransport.__init__ = init
"""


def measure(repeats):
    """
    Return {(name of a cell, name of a variant): median milliseconds of the rounds}.
    """
    times_ms = {}
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        start, first = start_cell(NUM_RANKS, "cpu"), all_reduce_cell(NUM_RANKS, "cpu")
        for cell in (start, first, TIMER, _SWITCH):
            kernel.run_well(cell)
        for _ in range(repeats):
            for name, source in _SOURCES.items():
                for variant, entries in _VARIANTS.items():
                    kernel.run_well(f"_send_only({entries!r})")
                    times_s = kernel.value(f"_times_s('px', {source!r}, {NUM_CELLS})")
                    times_ms.setdefault((name, variant), []).append(1000 * median(times_s))
        kernel.run_well("ranks.stop()")
    return {key: median(rounds) for key, rounds in times_ms.items()}


def main():
    """
    Measure, and print one line for each cell and variant.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    for (name, variant), milliseconds in measure(parser.parse_args().repeats).items():
        print(f"{name:10} {variant:20} {milliseconds:5.1f} ms")


if __name__ == "__main__":
    main()
