"""
Task 03.4: fit latency and bandwidth.

On each rank: `_act`; in both: `_link_and_times`. In the kernel: the rest.
"""

from math import isfinite, sqrt
from random import Random

import numpy as np

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.repeated_calls import call_once_or_twice
from ddp_lessons.pictures import holdings_picture

NOISE = 0.01
"""
How far the time of an uninterrupted try may be off, as a share of that time.
"""


_UNITS = (1e3, 1e6, 1e9, 2**10, 2**20, 2**30)

_NEAR = 0.08  # the share by which noise may change a fitted number

_SLOW = 1e5  # bytes a second: less than a hundredth of the bandwidth of any link here

_DRAWN_BYTES = {"1 B": 1, "1 KiB": 2**10, "64 KiB": 2**16, "16 MiB": 2**24}


def _cases(draw):
    yield Case(4, {"times": "of small to large messages", "calls": 2}, seed=0)
    yield Case(1, {"times": "of medium messages only"})
    yield Case(1, {"times": "of small to large messages"})
    yield Case(1, {"times": "of large to small messages"})
    yield Case(1, {"times": "of messages in no order"})
    yield Case(1, {"times": "of which some were interrupted"})
    yield Case(4, {"times": "of which the same two of each size were interrupted"})


def _link_and_times(case, rank):
    """
    Return a made-up link, and times as they would be measured on it.

    Returns:
        tuple: Latency in seconds, bandwidth in bytes a second, {bytes: seconds of five tries}.
    """
    rng = Random(f"{case.seed} {rank}")
    latency_s, bandwidth = rng.uniform(1e-5, 3e-5), rng.uniform(0.5e9, 1.5e9)
    sizes = [4**k for k in range(13)]  # 1 B to 16 MiB
    if "medium" in case["times"]:
        # Sizes around the one whose bytes take as long as the latency.
        sizes = [round(share * latency_s * bandwidth) for share in (0.5, 1, 2, 4, 8)]
    # The largest size seems a little slower than it is, the next one a little faster. An answer
    # that gives these two more weight than small sizes fits the latency to their noise.
    factors = [1 + rng.uniform(-0.8, 0.8) * NOISE for _ in sizes]
    factors[-2:] = [1 - 0.8 * NOISE, 1 + 0.8 * NOISE]
    points = list(zip(sizes, factors, strict=True))
    if "large to small" in case["times"]:
        points.reverse()
    if "no order" in case["times"]:
        # The first and the last size are the smallest, whose times differ by noise alone.
        points = [(4, 1 + 0.8 * NOISE), *rng.sample(points[2:], len(points) - 2)]
        points.append((1, 1 - 0.8 * NOISE))
    times = {}
    for size, factor in points:
        exact_s = factor * (latency_s + size / bandwidth)
        tries = [exact_s * (1 + rng.uniform(-0.1, 0.1) * NOISE) for _ in range(5)]
        if "interrupted" in case["times"]:
            # An answer that takes the try at a fixed place takes an interrupted one on some rank.
            other = 1 + rank if "same two" in case["times"] else rng.randint(1, 4)
            for place in (0, other):
                # No more than 5 times as long: weighted by 1 / time, such a try would hardly count.
                tries[place] *= rng.uniform(3, 5)
        times[size] = tries
    return latency_s, bandwidth, times


def _act(context, fit_link):
    def fit(times):
        got = fit_link(times)
        return got.tolist() if isinstance(got, np.ndarray) else got

    call_once_or_twice(context, fit, lambda case: [_link_and_times(case, context.rank)[2]])


def _judge(case_result):
    for rank, got in enumerate(case_result.results):
        latency_s, bandwidth, times = _link_and_times(case_result.case, rank)
        pair = _pair_of(got)
        both = {"got": _rounded(pair or got), "expected": _rounded((latency_s, bandwidth))}
        if case_result.seen[rank].calls[-1].repeats:
            raise case_result.wrong(
                "kept", rank, **both, fact="These are the times of another link."
            )
        if pair is None:
            raise case_result.wrong("no-pair", rank, **both, fact="It must return two numbers.")
        if pair[0] > 1 > pair[1]:
            fact = "A latency of more than a second is no latency."
            raise case_result.wrong("swapped", rank, **both, fact=fact)
        if 0 < pair[1] < 1:
            fact = "The second number is less than one byte a second."
            raise case_result.wrong("inverse", rank, **both, fact=fact)
        _judge_line(case_result, rank, pair, both, (latency_s, bandwidth, times))


def _pair_of(got):
    try:
        pair = [float(number) for number in got]
    except (TypeError, ValueError):
        return None
    return pair if len(pair) == 2 and all(map(isfinite, pair)) else None


def _rounded(numbers):
    return tuple(float(f"{one:.3g}") for one in numbers) if _pair_of(numbers) else numbers


def _judge_line(case_result, rank, pair, both, made_up):
    """
    Refuse a line that is further from the true line than the noise of its points explains.

    There are m points, each off by a share of at most e. As a vector of shares, the distance from
    the true line to the points is at most e sqrt(m). A line that fits at least as well is no
    further from the points, so it is at most 2 e sqrt(m) from the true line. The factor
    (1 + e) / (1 - e) is added because some shares are of true times, others of measured ones.
    """
    latency_s, bandwidth, times = made_up
    most_off = 2 * sqrt(len(times)) * NOISE * (1 + NOISE) / (1 - NOISE)
    off = {}
    for num_bytes in times:
        true_s = latency_s + num_bytes / bandwidth
        line_s = pair[0] + num_bytes / pair[1] if pair[1] else 0.0
        off[num_bytes] = abs(line_s - true_s) / true_s
    worst = max(off, key=off.__getitem__)
    if off[worst] <= most_off:
        return
    share = f"{off[worst]:.0%} off" if off[worst] < 10 else "off by more than 10 times the time"
    fact = f"The time that it predicts for {worst:,} B is {share}; the tolerance is {most_off:.1%}."
    factors = pair[0] / latency_s, pair[1] / bandwidth
    least, largest = {num_bytes: min(tries) for num_bytes, tries in times.items()}, max(times)
    is_latency = abs(factors[0] - 1) <= most_off
    if "interrupted" in case_result.case["times"]:
        mistake = "interrupted"
    elif case_result.case["times"] in ("of large to small messages", "of messages in no order"):
        mistake = "no-order"
    elif any(map(_is_unit, factors)) or abs(factors[1] / 8 - 1) <= _NEAR:
        mistake = "unit"
        fact = "The latency is {:.3g} times the link's, and the bandwidth {:.3g} times.".format(
            *factors
        )
    elif abs(factors[0] * factors[1] - 1) <= _NEAR:
        mistake = "times-over"
        fact = f"Every time that it predicts is {factors[0]:.3g} times as long as the true one."
    elif pair[1] <= 0:
        mistake = "small-say" if is_latency else "no-say"
        fact = "Its bandwidth is not above 0: more bytes would take less time."
    elif pair[1] < _SLOW:
        mistake = "logarithms"
    elif is_latency:
        mistake = "largest" if abs(pair[1] * least[largest] / largest - 1) <= _NEAR else "slope"
    elif "medium" in case_result.case["times"] and pair[0] >= (1 - NOISE) * min(least.values()):
        mistake = "smallest"
    else:
        mistake = "no-say"
    raise case_result.wrong(mistake, rank, **both, fact=fact)


def _is_unit(factor):
    return any(abs(one - 1) <= _NEAR for unit in _UNITS for one in (factor / unit, factor * unit))


def _draw(case_result):
    rows = []
    for rank, got in enumerate(case_result.results):
        latency_s, bandwidth = _pair_of(got) or (0.0, 0.0)
        bandwidth = bandwidth or float("inf")
        times = _link_and_times(case_result.case, rank)[2]
        row = {"latency": _micro(latency_s), "bandwidth": f"{bandwidth / 1e9:.2f} GB/s"}
        for name, num_bytes in _DRAWN_BYTES.items():
            line_s = latency_s + num_bytes / bandwidth
            row[f"{name}: line, least"] = f"{_micro(line_s)}, {_micro(min(times[num_bytes]))}"
        rows.append(row)
    return holdings_picture(list(rows[0]), rows)


def _micro(seconds):
    return f"{seconds * 1e6:,.0f} us"


fit_link = Task(
    number="03.4",
    name="fit_link",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="every size is within 2 sqrt(m) % of its true time, for m sizes",
    draw=_draw,
    hints=(
        "Plotted over the bytes, the seconds lie on a straight line. The line begins at the "
        "latency, and its slope is 1 / bandwidth.",
        "An interruption makes a try longer, never shorter. So take the shortest of the tries of a "
        "size.",
        "The largest message takes a thousand times as long as the smallest, so 1 % of its time is "
        "more than the whole latency. Weight each error by 1 / time, as the lesson does.",
        "slope, latency_s = np.polyfit(sizes, least, 1, w=1 / least), with arrays of float64; "
        "the slope is in seconds a byte.",
    ),
    mistakes={
        "no-pair": "Return two numbers: the latency in seconds, the bandwidth in bytes a second.",
        "swapped": "Return the latency first. np.polyfit returns the slope first.",
        "unit": "Return seconds, and bytes a second: no milliseconds, no MiB, no bits.",
        "logarithms": "Seconds over bytes lie on a straight line, and their logarithms do not. The "
        "bandwidth must be in bytes a second.",
        "no-order": "A dictionary may hold its sizes in any order. Look at the sizes, not at their "
        "positions.",
        "input-changed": "The dictionary and its lists belong to the caller: sorted(tries) makes a "
        "new list.",
        "inverse": "The slope is in seconds a byte. A bandwidth is in bytes a second.",
        "smallest": "The smallest message here also has bytes, which take time. The latency is "
        "the time at which the line begins, for 0 bytes.",
        "largest": "The time of the largest message also contains the latency. Take the slope of "
        "the line instead.",
        "slope": "The latency is right, and the bandwidth is not: it follows from the slope of the "
        "line alone. Bytes divided by a time do not give it, because the time contains the "
        "latency.",
        "small-say": "The smallest sizes decide here, and a bandwidth can hardly be seen in their "
        "times. With the weight 1 / size, these sizes count for nearly everything. Use the weight "
        "1 / time.",
        "times-over": "The time of a size is the time of one of its five tries, and neither their "
        "sum nor a part of the sum.",
        "no-say": "An error of 1 % of the longest time is more than the whole latency. Weight each "
        "error by 1 / time, and leave no size out: the latency can be seen in small sizes only.",
        "interrupted": "Some tries took several times as long, because other programs ran. For "
        "each size, take a try that was not interrupted.",
        "forbidden": "The times are measured already: send nothing.",
    },
    allowed=(),
)
