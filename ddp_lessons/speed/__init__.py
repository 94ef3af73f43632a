"""
Where a step's time goes: compute, communication that shows, waiting, and what overlap hides.

Read the files in this order:

- `naive` adds up durations and averages all steps, to be compared with.
- `intervals` has sets of moments: together, at the same time, and the rest.
- `splitting` splits each rank's step by them.
- `common_clock` brings the spans of several ranks to one clock.
- `stragglers` finds the rank that holds the others back.
- `predicting` foretells a step from measured compute and the cost model of lesson 03.
- `summaries` and `scaling` make reports of raw times: medians, spread, speed-up, Amdahl, Gustafson.
- `measuring`, `profiling` and `loading` are what runs on ranks: a clock, a profiler, a fetcher.
- `played` is a step whose compute is sleep, so that what one sees does not depend on cores.

Lesson: 11_speed.
"""

from ..costs import amdahl_speedup
from .common_clock import clock_offsets_s, in_ms, on_one_clock
from .intervals import difference, intersection, length, union
from .loading import fetched_ahead
from .measuring import all_reduce_times_s, least_step_s, step_times_s
from .naive import mean_speedup, summed_s
from .played import PlayedStep, SlowPeers, slow_all_reduce
from .predicting import bytes_in_s, error_share, fit_all_reduce, naive_step_s, predict_step_s
from .profiling import gather_profiles, profile_steps, profile_track
from .scaling import (
    Report,
    efficiency,
    gustafson_speedup,
    highest_speedup,
    report_speedup,
    serial_share_of,
    speedup,
)
from .splitting import Split, last_calls, split_steps, with_waiting
from .stragglers import agree_on_straggler, find_straggler, who_waits_least
from .summaries import Summary, of_slowest, summarise

__all__ = [
    "PlayedStep",
    "Report",
    "SlowPeers",
    "Split",
    "Summary",
    "agree_on_straggler",
    "all_reduce_times_s",
    "amdahl_speedup",
    "bytes_in_s",
    "clock_offsets_s",
    "difference",
    "efficiency",
    "error_share",
    "fetched_ahead",
    "find_straggler",
    "fit_all_reduce",
    "gather_profiles",
    "gustafson_speedup",
    "highest_speedup",
    "in_ms",
    "intersection",
    "last_calls",
    "least_step_s",
    "length",
    "mean_speedup",
    "naive_step_s",
    "of_slowest",
    "on_one_clock",
    "predict_step_s",
    "profile_steps",
    "profile_track",
    "report_speedup",
    "serial_share_of",
    "slow_all_reduce",
    "speedup",
    "split_steps",
    "step_times_s",
    "summarise",
    "summed_s",
    "union",
    "who_waits_least",
    "with_waiting",
]
