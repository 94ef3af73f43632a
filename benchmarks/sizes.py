"""
Measure what more ranks cost: in a start, in a cell, and in the time to the prompt after a fault.
"""

import tempfile
import time
from statistics import median

from kernel import running_kernel
from recovery import FAULTS, measure_fault
from starting import all_reduce_cell, start_cell, warm_up

SIZES = (4, 8, 16, 32)
NUM_CELLS = 50
_CELL = "%%px\nx = 1"


def measure(round_number):
    """
    Measure each number of ranks in a fresh kernel, in an order that rotates from round to round.

    Args:
        round_number: Number of the round, from 0.

    Returns:
        dict: For each number n of ranks `start_<n>_s`, `round_trip_<n>_ms`, and `<fault>_<n>_s`,
        the seconds from each fault of recovery.py to the prompt.
    """
    if round_number == 0:
        warm_up()
    first = round_number % len(SIZES)
    samples = {}
    for num_ranks in SIZES[first:] + SIZES[:first]:
        samples |= _measure_size(num_ranks)
    return samples


def _measure_size(num_ranks):
    cells = start_cell(num_ranks), all_reduce_cell(num_ranks)
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        samples = {f"start_{num_ranks}_s": kernel.seconds_of(*cells)}
        times_ms = [_round_trip_ms(kernel) for _ in range(NUM_CELLS)]
        samples[f"round_trip_{num_ranks}_ms"] = median(times_ms)
        for fault in FAULTS:
            seconds = measure_fault(kernel, fault, num_ranks)[f"{fault.name}_prompt_s"]
            samples[f"{fault.name}_{num_ranks}_s"] = seconds
        kernel.run_well("ranks.stop()")
    return samples


def _round_trip_ms(kernel):
    began_s = time.monotonic()
    return 1000 * (kernel.run_well(_CELL).prompt_s - began_s)
