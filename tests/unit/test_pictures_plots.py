"""
Plots of measured numbers are PNGs, with a title that holds none of the numbers.
"""

import io
import re

import pytest
from matplotlib.image import imread
from sample_pictures import TRACK

from ddp_lessons.costs import fit
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import timeline_plot, times_plot
from ddp_lessons.pictures.svg import rank_colour

SAMPLES = [(2**k, 1e-5 * (1 + k % 3 / 10) + 2**k / 1e9) for k in range(4, 24, 2)]


def coloured(plot, colour):
    """
    Return the number of pixel columns that contain a colour.
    """
    pixels = (imread(io.BytesIO(plot._repr_png_()))[..., :3] * 255).round()
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((pixels == wanted).all(axis=-1).any(axis=0).sum())


def test_timeline_plot_draws_every_rank_in_its_colour():
    """
    Each rank has its colour, and twice the time is twice as long, apart from the edges of the bars.
    """
    plot = timeline_plot([[("compute", 0, 2.0)], [("compute", 0, 4.0)], []], "time in ms")
    first, second = (coloured(plot, rank_colour(rank)) for rank in (0, 1))
    assert first > 200
    # An edge is a point wide, or one and a half pixels, and blurs into the next pixel: 3 pixels at
    # each end.
    assert abs(second - 2 * first) <= 2 * 6
    assert coloured(plot, rank_colour(2)) == 0


def test_timeline_plot_has_a_repr_without_measured_numbers():
    """
    A plot's text holds no measured numbers, because nbval compares it. It does not compare pixels.
    """
    plot = timeline_plot([TRACK, TRACK], "time in ms")
    assert repr(plot) == "<Plot: what 2 ranks did: time in ms>"
    assert plot._repr_png_().startswith(b"\x89PNG")


def test_timeline_plot_refuses_what_the_picture_refuses():
    """
    The plot refuses the data that the picture refuses, because both take the same data.
    """
    with pytest.raises(BadInput, match="Unknown kind"):
        timeline_plot([[("sleep", 0, 1)]], "time in ms")


def test_times_plot_draws_measurements_and_a_fit():
    """
    Measured and predicted times are drawn in one plot.
    """
    found = fit(SAMPLES)
    line = [
        (n, p.value, p.low, p.high) for n, p in ((2**k, found.predict(2**k)) for k in range(4, 25))
    ]
    plot = times_plot({"send": SAMPLES, "again": SAMPLES[:3]}, {"fit": line})
    assert repr(plot) == "<Plot: seconds over bytes: send, again, fit>"
    assert not re.search(r"\d", plot.title)
    for number in (0, 1):
        assert coloured(plot, rank_colour(number)) > 0


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({}, "No measurements to draw"),
        ({"a": []}, "No points of 'a' to draw"),
        ({"a": [(0, 1.0)]}, "No logarithm: .*got 0 and 1.0 of 'a'"),
    ],
)
def test_times_plot_refuses_what_has_no_place_on_its_axes(measured, message):
    """
    Values without a logarithm are refused, because Matplotlib would leave them out silently.
    """
    with pytest.raises(BadInput, match=message):
        times_plot(measured)
