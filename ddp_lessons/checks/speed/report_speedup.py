"""
Task 11.4: report a speed-up.

On each rank: `noted_times_s`, `_act`, `_alone`, `_together`, `_timed`. In the kernel: the rest.
"""

import time
from itertools import product
from random import Random
from statistics import mean, median, median_high, median_low

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.speed.runs import number_of
from ddp_lessons.pictures import timeline_plot

PARTS = ("speedup", "efficiency", "fastest_s", "slowest_s")
MOST_CALLS = 2
_NEAR = 1e-4  # float32 has seven digits; mistakes are off by far more


_NOTED_BEFORE_MS = (60, 9.5, 11, 13, 12, 28)
_NOTED_MS = (
    (45, 12, 9, 8, 7.5, 8.5),
    (44, 7, 13, 8.2, 9.1, 6),
    (43, 8, 7.2, 14.5, 6.5, 7),
    (41, 9.3, 8.3, 7.1, 15.5, 19),
)
"""
Times for which each mistake gives a different number. Times measured on a busy machine may not.
"""


def _cases(draw):
    told = {"samples": [8, 12, 4, 10], "before": 8, "warm-up": 1}
    yield Case(4, told | {"times": "noted"}, seed=0)
    yield Case(4, told | {"times": "noted", "warm-up": 2})  # leaves an even number of steps
    yield Case(4, told, seed=1)
    for world_size in (2, 3, 4):
        samples = [draw.randint(3, 20) for _ in range(world_size)]
        data = {"samples": samples, "before": draw.randint(4, 16), "warm-up": draw.randint(1, 2)}
        yield Case(world_size, data)
    yield Case(2, {"samples": [5, 9], "before": 7, "warm-up": 0, "steps": 6})
    yield Case(1, {"samples": [6], "before": 12, "warm-up": 1})


def noted_times_s(rank):
    """
    Return fixed times in seconds: of the steps of rank 0 alone, and of a rank among four.
    """
    return [ms / 1e3 for ms in _NOTED_BEFORE_MS], [ms / 1e3 for ms in _NOTED_MS[rank]]


def _act(context, report_speedup):
    num_warm_up, num_steps = (
        context["warm-up"],
        context["warm-up"] + context.case.data.get("steps", 5),
    )
    if "times" in context.case.data:
        before_s, own_s = noted_times_s(context.rank)
    else:
        before_s, own_s = _alone(context, num_steps), _together(context, num_steps)
    samples = context["samples"][context.rank]
    context.call(report_speedup, before_s, context["before"], own_s, samples, num_warm_up)


def _alone(context, num_steps):
    """
    Make steps on rank 0 while the others wait. Return their seconds on every rank.
    """
    draw, times_s = Random(context.case.seed), []
    for number in range(num_steps if context.rank == 0 else 0):
        slow_s = 0.030 if number < context["warm-up"] else 0.0
        pause_s = 0.015 if number == num_steps - 1 else 0.0
        times_s.append(_timed(time.sleep, draw.uniform(0.006, 0.008) + slow_s + pause_s))
    told = [times_s]
    dist.broadcast_object_list(told, 0)
    return told[0]


def _together(context, num_steps):
    """
    Make steps on all ranks. Return this rank's seconds.

    In each step another rank finishes last, because it writes a log.
    """
    draw, tensor = (
        Random(f"{context.case.seed} {context.rank}"),
        torch.zeros(1, device=context.device),
    )

    def step(number):
        time.sleep(draw.uniform(0.004, 0.006) + (0.030 if number < context["warm-up"] else 0.0))
        dist.all_reduce(tensor)
        writes = (number + context.rank) % max(2, context.world_size) == 0
        time.sleep(draw.uniform(0.006, 0.012) if writes else 0.0)

    times_s = []
    for number in range(num_steps):
        dist.barrier()
        times_s.append(_timed(step, number))
    return times_s


def _timed(function, *args):
    start_s = time.perf_counter()
    function(*args)
    return time.perf_counter() - start_s


def _judge(case_result):
    w = case_result.case.world_size
    rows = []
    for rank, got in enumerate(case_result.results):
        row = _row_of(got)
        if row is None:
            fact = f"It must return a dictionary with {', '.join(PARTS)}, a number each."
            raise case_result.wrong("no-parts", rank, got=got, fact=fact)
        rows.append(row)
    if w > 1 and not any(case_result.call_names) and case_result.call == "first":
        fact = "No rank has told another of its times and its samples."
        raise case_result.wrong("alone", 0, fact=fact)
    times = Times(case_result)
    for part in PARTS:
        for rank, row in enumerate(rows):
            if _is_near(row[part], times.right[part]):
                continue
            mistake = times.mistake(part, row[part], rank)
            fact = f"Its {part} is {row[part]:.5g}; it is {times.right[part]:.5g}."
            raise case_result.wrong(mistake, rank, fact=fact)
    for rank, names in enumerate(case_result.call_names):
        if len(names) > MOST_CALLS:
            fact = f"It made {len(names)} calls; {MOST_CALLS} are enough."
            raise case_result.wrong("cost", rank, fact=fact)


def _row_of(got):
    if not isinstance(got, dict) or not set(PARTS) <= got.keys():
        return None
    row = {part: number_of(got[part]) for part in PARTS}
    return None if None in row.values() else row


def _is_near(got, expected):
    return abs(got - expected) <= _NEAR * abs(expected)


class Times:
    """
    The times of all ranks, and the numbers that follow from them: right, and by common mistakes.
    """

    def __init__(self, case_result):
        calls = [seen.calls[-1] for seen in case_result.seen]
        self.before_s, self.before, _, _, self.num_warm_up = calls[0].before
        self.own_s = [call.before[2] for call in calls]
        self.samples = [call.before[3] for call in calls]
        self.w = len(calls)
        self.all_s = [max(of_step) for of_step in zip(*self.own_s, strict=True)]
        kept_s = self.all_s[self.num_warm_up :]
        gain = self._gain(median(self._kept(self.before_s)), median(kept_s), sum(self.samples))
        self.right = {
            "speedup": gain,
            "efficiency": gain / self.w,
            "fastest_s": min(kept_s),
            "slowest_s": max(kept_s),
        }

    def _kept(self, times_s):
        return times_s[self.num_warm_up :]

    def _all(self, first):
        return [time_s for own_s in self.own_s for time_s in own_s[first:]]

    def _gain(self, before_s, after_s, samples):
        return (samples / after_s) / (self.before / before_s)

    def mistake(self, part, got, rank):
        """
        Return the mistake that gives the number `got` for a part of the report on a rank.
        """
        if part == "efficiency":
            right = self.right[part]
            return "percent" if _is_near(got, 100 * right) else "efficiency"
        if part != "speedup" and any(_is_near(got, self.right[other]) for other in PARTS[2:]):
            return "spread"
        recipes = self.of_gain(rank) if part == "speedup" else self.of_spread(rank)
        found = [name for name, value in recipes if _is_near(got, value)]
        if found:
            return found[0]
        return "values" if part == "speedup" else "spread"

    def of_gain(self, rank):
        one_s, total = self._kept(self.before_s), sum(self.samples)
        all_s, own_s = self._kept(self.all_s), self._kept(self.own_s[rank])
        means_s = [mean(of_step) for of_step in zip(*map(self._kept, self.own_s), strict=True)]
        sums_s = [sum(of_step) for of_step in zip(*map(self._kept, self.own_s), strict=True)]
        firsts_s = [min(of_step) for of_step in zip(*map(self._kept, self.own_s), strict=True)]
        of_ranks = [median(self._kept(own)) for own in self.own_s]
        right = self.right["speedup"]
        yield "inverse", 1 / right
        middles: tuple = (median, median_low, median_high)
        for one, other in product(middles, repeat=2):
            yield "middle", self._gain(one(one_s), other(all_s), total)
        yield "percent", 100 * right
        yield "warm-up", self._gain(median(self.before_s), median(self.all_s), total)
        yield "warm-up", self._gain(mean(self.before_s), mean(self.all_s), total)
        yield "warm-up", self._gain(median(self.before_s), median(all_s), total)
        yield "warm-up", self._gain(median(one_s), median(self.all_s), total)
        yield "warm-up", self._gain(mean(self.before_s), mean(all_s), total)
        yield "means", self._gain(mean(one_s), mean(all_s), total)
        yield "best", self._gain(min(one_s), min(all_s), total)
        yield "best", self._gain(max(one_s), min(all_s), total)
        yield "best", self._gain(median(one_s), min(all_s), total)
        yield "seconds", median(one_s) / median(all_s)
        yield "own-samples", self._gain(median(one_s), median(all_s), self.samples[rank])
        yield "own-samples", self._gain(median(one_s), median(all_s), self.w * self.samples[rank])
        yield "own-samples", self._gain(median(one_s), median(all_s), self.w * self.before)
        yield "own-samples", self._gain(median(one_s), median(all_s), total / self.w)
        for taken_s in (median(own_s), median(means_s), median(sums_s), median(firsts_s)):
            yield "own-times", self._gain(median(one_s), taken_s, total)
        for taken_s in (
            max(of_ranks),
            min(of_ranks),
            mean(of_ranks),
            median(self._all(self.num_warm_up)),
        ):
            yield "own-times", self._gain(median(one_s), taken_s, total)
        yield (
            "own-times",
            sum(
                self._gain(median(one_s), taken_s, samples)
                for taken_s, samples in zip(of_ranks, self.samples, strict=True)
            ),
        )
        yield "alone", self._gain(median(one_s), median(own_s), self.samples[rank])

    def of_spread(self, rank):
        yield "warm-up", max(self.all_s)
        yield "warm-up", min(self.all_s)
        for own_s in (self.own_s[rank], self._all(0), self._all(self.num_warm_up)):
            yield "own-times", min(own_s)
            yield "own-times", max(own_s)
        yield "own-times", min(self._kept(self.own_s[rank]))
        yield "own-times", max(self._kept(self.own_s[rank]))


def _draw(case_result):
    times, tracks = Times(case_result), []
    for own_s in times.own_s:
        now_ms, track = 0.0, []
        for taken_s, step_s in zip(own_s, times.all_s, strict=True):
            track.append(("compute", now_ms, now_ms + 1e3 * taken_s))
            if taken_s < step_s:
                track.append(("waiting", now_ms + 1e3 * taken_s, now_ms + 1e3 * step_s))
            now_ms += 1e3 * step_s
        tracks.append(track)
    return timeline_plot(tracks, "time in ms: steps of all ranks, and who waited for their end")


report_speedup = Task(
    number="11.4",
    name="report_speedup",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="medians of samples a second, without warm-up, with the spread",
    draw=_draw,
    draws_case=2,
    hints=(
        "Ranks work on batches of other sizes than one rank did. So compare samples a second: all "
        "samples of a step over the time of that step.",
        "A step is over when the slowest rank is through. Which rank that is changes from step to "
        "step, so take the largest of each step before anything else.",
        "Two calls tell all of it: the largest of each step's times over all ranks, and the sum of "
        "the samples.",
        "dist.all_reduce(times, op=dist.ReduceOp.MAX), with times = torch.tensor(own_s, "
        "dtype=torch.float64); then median(times[num_warm_up:]).",
    ),
    mistakes={
        "no-parts": "Return a dictionary with the four names of the task, a number for each.",
        "alone": "Each rank knows its own times and its own samples. What counts are the slowest "
        "rank's times and the sum of all samples.",
        "inverse": "A speed-up above 1 is faster: samples a second on all ranks, over those on "
        "one.",
        "percent": "Return plain ratios: 0.8, and not 80.",
        "warm-up": "Leave the first num_warm_up steps out, of both runs and of all four numbers.",
        "means": "One step that was interrupted moves a mean. Take medians.",
        "middle": "Of an even number of steps, the median is the mean of the two in the middle. "
        "statistics.median takes it, torch.median the lower one.",
        "best": "The fastest step is what luck can do. Take medians.",
        "seconds": "The two runs differ in how many samples a step has. Compare samples a second.",
        "own-samples": "Count the samples of all ranks: they need not have equally many.",
        "own-times": "A step of all ranks takes as long as on the slowest of them, and that may be "
        "another one in each step.",
        "efficiency": "Efficiency is the speed-up over the number of ranks.",
        "spread": "The fastest and the slowest step of all ranks together, without warm-up.",
        "values": "Go through one case with a pencil: the times of the steps, their median, the "
        "samples, samples a second.",
        "cost": "One call for the times of all steps, one for the samples.",
        "raised": "The line that is named is yours. One rank alone is a group, too.",
        "input-changed": "Leave the lists as they are: sorted makes a new one.",
        "store": "Let times and samples travel in collectives.",
    },
)
