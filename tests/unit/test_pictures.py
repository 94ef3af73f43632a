"""
Pictures show data: the same data gives the same bytes, and no label is clipped or becomes markup.
"""

import xml.etree.ElementTree as ET

import pytest

from ddp_lessons.pictures import holdings_picture, loss_plot, processes_picture
from ddp_lessons.pictures.svg import RANK_COLOURS, rank_colour, text_width

SVG = "{http://www.w3.org/2000/svg}"
HELD = [{"secret": 0, "name": "zero"}, {"secret": 10}, {}]


def parse(picture):
    """
    Return the root of a picture's SVG. Fails if the SVG is not well-formed.
    """
    return ET.fromstring(picture._repr_svg_())


def texts(picture):
    """
    Return all texts of a picture, in order.
    """
    return [element.text for element in parse(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 9])
def test_processes_picture_names_every_rank_and_device(num_ranks):
    """
    The picture names every rank and its device.
    """
    devices = [f"cuda:{rank % 2}" for rank in range(num_ranks)]
    drawn = texts(processes_picture(devices))
    assert [text for text in drawn if text.startswith("rank ")] == [
        f"rank {rank}" for rank in range(num_ranks)
    ]
    assert set(devices) <= set(drawn)
    assert {"kernel", "controller"} <= set(drawn)


def test_processes_picture_of_nothing_is_refused():
    """
    A picture without ranks is refused, because that is a mistake of the caller.
    """
    with pytest.raises(ValueError, match="No ranks to draw"):
        processes_picture([])


def test_holdings_picture_shows_each_value_once_and_gaps_dashed():
    """
    The picture shows each value once, and a missing one as a dashed box, which differs from an
    empty value.
    """
    picture = holdings_picture(["secret", "name"], HELD, kernel={})
    drawn = texts(picture)
    assert drawn[:2] == ["secret", "name"]
    assert drawn.count("0") == drawn.count("10") == drawn.count("zero") == 1
    dashed = [e for e in parse(picture).iter(f"{SVG}rect") if e.get("stroke-dasharray")]
    assert len(dashed) == 2 + 1 + 2  # two of the kernel, one of rank 1, two of rank 2


def test_holdings_picture_of_false_and_zero_are_values():
    """
    Zero, False and the empty text count as values. Only None and a missing name do not.
    """
    picture = holdings_picture(["x"], [{"x": 0}, {"x": False}, {"x": ""}, {"x": None}])
    dashed = [e for e in parse(picture).iter(f"{SVG}rect") if e.get("stroke-dasharray")]
    assert len(dashed) == 1


@pytest.mark.parametrize(
    "picture",
    [
        holdings_picture(["secret", "name"], HELD, kernel={"secret": "a long value indeed"}),
        processes_picture(["cpu"] * 4),
        processes_picture(["cuda:0"]),
    ],
)
def test_picture_has_a_title_and_clips_no_label(picture):
    """
    Each picture has a title, which screen readers read, and no label leaves the canvas.
    """
    root = parse(picture)
    assert root.find(f"{SVG}title").text == picture.title
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter(f"{SVG}text"):
        size = float(element.get("font-size"))
        half = text_width(element.text, size) / 2
        x, y = float(element.get("x")), float(element.get("y"))
        assert half <= x <= width - half, element.text
        assert size / 2 <= y <= height, element.text


def test_picture_escapes_what_it_draws():
    """
    Values are escaped, so that no value becomes a part of the page.
    """
    picture = holdings_picture(["<b>&"], [{"<b>&": "</svg><script>alert(1)</script>"}])
    assert "<script>" not in picture._repr_svg_()
    assert texts(picture)[0] == "<b>&"


def test_picture_is_the_same_for_the_same_data():
    """
    The same data gives the same picture, because nbval compares pictures.
    """
    first = holdings_picture(["secret"], HELD)
    assert first._repr_svg_() == holdings_picture(["secret"], HELD)._repr_svg_()
    assert repr(first) == "<Picture: What each process holds under the names secret>"


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_rank_colours_are_fixed_distinct_and_readable():
    """
    White text on each rank's colour has a contrast of at least 3 to 1, which WCAG demands of bold
    labels.

    Numbers stand beside the colours, so that a reader need not distinguish colours.
    """
    assert len(set(RANK_COLOURS)) == len(RANK_COLOURS)
    assert rank_colour(0) == rank_colour(len(RANK_COLOURS)) == "#4c78a8"
    for colour in RANK_COLOURS:
        assert 1.05 / (_luminance(colour) + 0.05) >= 3.0, colour


def test_loss_plot_is_a_png_with_a_plain_repr():
    """
    A plot is a PNG, which nbval does not compare, and has a text without measured numbers, which
    nbval compares.
    """
    plot = loss_plot([[1.0, 0.1], [2.0, 0.2]])
    assert plot._repr_png_().startswith(b"\x89PNG")
    assert repr(plot) == "<Plot: loss of each rank over its steps>"
