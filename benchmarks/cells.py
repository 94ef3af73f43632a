"""
Measure, inside the kernel, how long a `%%px` cell takes on all ranks: ours and ipyparallel's.
"""

import tempfile
from statistics import median, quantiles

from kernel import running_kernel
from starting import NUM_RANKS, all_reduce_cell, start_cell

NUM_CELLS = 200
TIMER = """\
def _times_s(magic, source, num_cells):
    run, clock, times = get_ipython().run_cell_magic, _time.perf_counter, []
    for _ in range(num_cells):
        began = clock()
        run(magic, "", source)
        times.append(clock() - began)
    return times
ranks.view.activate("_stock")  # ipyparallel's own %%px on the same engines, as %%px_stock
"""
_CELLS = {"plain": "x = 1", "all_reduce": "dist.all_reduce(total)"}
_MAGICS = {"ours": "px", "stock": "px_stock"}


def measure(round_number, num_ranks=NUM_RANKS, device="cpu"):
    """
    Time cells in a fresh kernel, by our `%%px` and by ipyparallel's.

    Args:
        round_number: Number of the round, from 0. Ours is first in even rounds.
        num_ranks: Number of ranks.
        device: "cpu" or "cuda".

    Returns:
        dict: {name of a sample: milliseconds}.
    """
    magics = list(_MAGICS)[:: -1 if round_number % 2 else 1]
    samples = {}
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        start, first = start_cell(num_ranks, device), all_reduce_cell(num_ranks, device)
        for cell in (start, first, TIMER):
            kernel.run_well(cell)
        for name, source in _CELLS.items():
            for magic in magics:
                call = f"_times_s({_MAGICS[magic]!r}, {source!r}, {NUM_CELLS})"
                times_ms = [1000 * seconds for seconds in kernel.value(call)]
                samples[f"cell_{name}_{magic}_ms"] = median(times_ms)
                samples[f"cell_{name}_{magic}_p95_ms"] = quantiles(times_ms, n=20)[-1]
        kernel.run_well("ranks.stop()")
    return samples
