"""
The timetable of a pipeline, which shows the idle times of its ranks.
"""

import pytest
from sample_pictures import SVG, parse, sample_pictures

from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import timetable_picture


def _idle_widths(picture):
    return [
        float(box.get("width"))
        for box in parse(picture).iter(f"{SVG}rect")
        if "dots" in box.get("fill", "") and float(box.get("height")) > 20  # not in the legend
    ]


def test_bubble_is_drawn_as_long_as_it_lasts():
    """
    The idle time is drawn to scale: of the 18 ticks of two ranks 6 are idle, and the picture's
    width is 9 ticks.
    """
    widths = _idle_widths(sample_pictures()["timetable"])
    assert sum(widths) == pytest.approx(680 * 6 / 9, abs=1e-2)  # numbers have six digits
    busy = timetable_picture([[("F", "0", 0, 1), ("B", "0", 1, 3)]])
    assert _idle_widths(busy) == []


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "No ranks to draw"),
        ([[]], "Nothing lasts"),
        ([[("F", "0", 0, 0)]], "Nothing lasts"),
        ([[("X", "0", 0, 1)]], "Unknown kind: expected one of F, B"),
        ([[("F", "0", 2, 1)]], "Bad time"),
        ([[("F", "0", -1, 1)]], "Bad time"),
        ([[("F", "0", 0, 2), ("B", "0", 1, 3)]], "Bad time"),
    ],
)
def test_what_is_no_timetable_is_refused(rows, fault):
    """
    An invalid timetable is refused: two actions at a time on one rank would hide each other.
    """
    with pytest.raises(BadInput, match=fault):
        timetable_picture(rows)
