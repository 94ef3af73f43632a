"""
Latency and bandwidth from measurements, with how sure one may be of them.

Sizes run over many decades, and a busy machine makes a time longer by a factor, not by a fixed
number of seconds. So the fit makes the squares of log(measured / expected) least: each size has
the same say, and a time that is ten times too long pulls no harder than one ten times too short.
Plain least squares would look at the largest sizes only and find no latency at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

from ddp_lessons.costs.link import Link
from ddp_lessons.errors import BadInput

_MOST_ROUNDS = 200


@dataclass(frozen=True)
class Interval:
    """
    A value and the bounds between which it lies with the confidence asked for.

    Args:
        value: The best guess.
        low: Lower bound.
        high: Upper bound; may be infinite.
    """

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True)
class Fit:
    """
    A fitted link and its uncertainty.

    Args:
        latency_s: Interval of the latency, in seconds.
        bandwidth_bytes_per_s: Interval of the bandwidth.
        error_share: Standard deviation of log(measured / fitted): 0.05 is about 5 %.
        confidence: Confidence level of the intervals, for example 0.95.
        num_samples: Measurements behind it.
    """

    latency_s: Interval
    bandwidth_bytes_per_s: Interval
    error_share: float
    confidence: float
    num_samples: int
    _covariance: tuple[float, ...]
    _quantile: float
    _num_rounds: float
    _byte_share: float

    @property
    def link(self) -> Link:
        """
        The fitted Link.
        """
        return Link(self.latency_s.value, self.bandwidth_bytes_per_s.value)

    def predict(
        self, num_bytes: float, num_rounds: float | None = None, byte_share: float | None = None
    ) -> Interval:
        """
        Predict the seconds of one more measurement.

        Args:
            num_bytes: Its size in bytes.
            num_rounds: Rounds of the collective; None means as in the fit.
            byte_share: Bytes on its critical path over `num_bytes`; None means as in the fit.

        Returns:
            Interval: Seconds. Its bounds hold the noise of one measurement too.

        Lesson: 03_ring.
        """
        x = self._num_rounds if num_rounds is None else num_rounds
        y = (self._byte_share if byte_share is None else byte_share) * num_bytes
        value = x * self.latency_s.value + y / self.bandwidth_bytes_per_s.value
        aa, ab, bb = self._covariance
        spread = sqrt(max(0.0, x * x * aa + 2 * x * y * ab + y * y * bb)) / value
        factor = exp(min(700.0, self._quantile * sqrt(spread**2 + self.error_share**2)))
        return Interval(value, value / factor, value * factor)


def fit(
    samples: Iterable[tuple[float, float]],
    num_rounds: float = 1,
    byte_share: float = 1.0,
    confidence: float = 0.95,
) -> Fit:
    """
    Fit latency and bandwidth to measured times by least squares of their logarithms.

    Args:
        samples: Pairs (bytes, seconds), at least three, of at least two sizes. Take the median
            or the least of several runs for each; a single run may have been interrupted.
        num_rounds: Messages one after the other in what was measured: 1 for a single message, or
            the first number of `critical_path` for a collective.
        byte_share: Bytes one after the other, over the bytes given: 1 for a message, or the
            second number of `critical_path`.
        confidence: How often the intervals should hold the truth, between 0 and 1.

    Returns:
        Fit: Intervals of both numbers. They follow Student's t, so they are wide for few samples.

    Raises:
        BadInput: Too few samples or sizes, an impossible number, or times that do not grow with
            the size, from which no bandwidth can be told.

    Source: the Gauss-Newton method and its intervals, for example in Bates, Watts, "Nonlinear
    Regression Analysis and Its Applications", 1988.
    Lesson: 03_ring.
    """
    points = _checked(samples, num_rounds, byte_share, confidence)
    rows = [(num_rounds, byte_share * num_bytes, seconds) for num_bytes, seconds in points]
    (latency_s, s_per_byte), (aa, ab, bb) = _least_squares(rows)
    free = len(rows) - 2
    noise = sqrt(_misfit(rows, latency_s, s_per_byte) / free)
    covariance = tuple(noise**2 * entry for entry in (aa, ab, bb))
    quantile = _student_t(free, confidence)
    a_reach, b_reach = (quantile * sqrt(covariance[k]) for k in (0, 2))
    if latency_s < 0:
        # A latency cannot be negative. The best fit that is allowed then has none.
        s_per_byte = exp(sum(log(seconds / y) for _, y, seconds in rows) / len(rows))
    if s_per_byte <= 0:
        raise BadInput(
            "No bandwidth to be told: expected seconds that grow with the bytes (got times that "
            "do not). Measure larger sizes, or more often."
        )
    lowest = s_per_byte - b_reach
    return Fit(
        Interval(max(0.0, latency_s), max(0.0, latency_s - a_reach), max(0.0, latency_s + a_reach)),
        Interval(1 / s_per_byte, 1 / (s_per_byte + b_reach), 1 / lowest if lowest > 0 else inf),
        noise,
        confidence,
        len(rows),
        covariance,
        quantile,
        num_rounds,
        byte_share,
    )


def _checked(samples, num_rounds, byte_share, confidence):
    points = [tuple(sample) for sample in samples]
    if len(points) < 3 or len({num_bytes for num_bytes, _ in points}) < 2:
        raise BadInput(
            "Too few measurements: expected at least three, of at least two sizes "
            f"(got {len(points)}, of {len({num_bytes for num_bytes, _ in points})}). Measure more."
        )
    for num_bytes, seconds in points:
        if not (isfinite(num_bytes) and num_bytes >= 0 and isfinite(seconds) and seconds > 0):
            raise BadInput(
                "Bad measurement: expected bytes of at least 0 and seconds above 0 "
                f"(got {num_bytes!r} and {seconds!r}). Leave it out."
            )
    if not (num_rounds > 0 and byte_share > 0):
        raise BadInput(
            "Nothing was sent: expected rounds and a share of bytes above 0 "
            f"(got {num_rounds!r} and {byte_share!r}). Fit a collective of two ranks or more."
        )
    if not 0 < confidence < 1:
        raise BadInput(
            f"Bad confidence: expected a number between 0 and 1 (got {confidence!r}). Pass 0.95."
        )
    return points


def _least_squares(rows):
    """
    Return the two numbers with the least misfit, and the inverse of their normal equations.
    """
    (x, _, shortest_s), (_, y, longest_s) = (
        choose(rows, key=lambda row: row[1]) for choose in (min, max)
    )
    best = (shortest_s / x, longest_s / y)  # both positive, so all expected times are
    misfit = _misfit(rows, *best)
    for _ in range(_MOST_ROUNDS):
        step, _ = _newton_step(rows, *best)
        share, tried = 1.0, (best[0] + step[0], best[1] + step[1])
        # A full step may lead too far, or to times below 0: then half of it, and half again.
        while _misfit(rows, *tried) > misfit and share > 1e-9:
            share /= 2
            tried = (best[0] + share * step[0], best[1] + share * step[1])
        moved = max(abs(x * (tried[0] - best[0]) + y * (tried[1] - best[1])) / seconds
                    for x, y, seconds in rows)  # fmt: skip
        best, misfit = tried, _misfit(rows, *tried)
        if moved < 1e-14:
            break
    return best, _newton_step(rows, *best)[1]


def _misfit(rows, latency_s, s_per_byte):
    expected = [x * latency_s + y * s_per_byte for x, y, _ in rows]
    if min(expected) <= 0:
        return inf
    return sum(log(seconds / t) ** 2 for (*_, seconds), t in zip(rows, expected, strict=True))


def _newton_step(rows, latency_s, s_per_byte):
    # Normal equations of two unknowns, each row divided by its expected seconds.
    expected = [x * latency_s + y * s_per_byte for x, y, _ in rows]
    scaled = [
        (x / t, y / t, log(seconds / t)) for (x, y, seconds), t in zip(rows, expected, strict=True)
    ]
    # Bytes are large beside rounds; in units of the largest the equations keep their digits.
    unit = max(y for _, y, _ in scaled)
    xx = sum(x * x for x, _, _ in scaled)
    xy = sum(x * y / unit for x, y, _ in scaled)
    yy = sum((y / unit) ** 2 for _, y, _ in scaled)
    xs = sum(x * s for x, _, s in scaled)
    ys = sum(y / unit * s for _, y, s in scaled)
    det = xx * yy - xy * xy
    # Below this the difference of the two products is mostly rounding.
    if det <= 1e-12 * xx * yy:
        raise BadInput(
            "Sizes too alike: expected sizes that tell latency from bandwidth (got nearly one). "
            "Measure small and large ones."
        )
    step = (yy * xs - xy * ys) / det, (xx * ys - xy * xs) / det / unit
    return step, (yy / det, -xy / det / unit, xx / det / unit**2)


def _student_t(free, confidence):
    # scipy comes with scikit-learn; it is loaded here because only a fit needs it.
    from scipy.special import stdtrit

    return float(stdtrit(free, (1 + confidence) / 2))
