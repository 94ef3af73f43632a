"""
Rules for every picture: valid XML, a title, nothing clipped, no markup from data, the same on every
run.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_pictures import RING, SVG, parse, sample_pictures

from ddp_lessons import pictures
from ddp_lessons.pictures import (
    buckets_picture,
    collective_picture,
    memory_picture,
    samples_picture,
    shards_picture,
    steps_picture,
    timeline_picture,
)
from ddp_lessons.pictures.svg import PATTERNS, RANK_COLOURS, Canvas, shorten, text_width

NASTY = "</text></svg><script>alert(1)</script>&\"'\x00\ud800\n"
SAMPLES = sample_pictures()
SHARE_START = {"start": 0, "middle": 0.5, "end": 1}


def text_boxes(root):
    """
    Return (left, top, right, bottom, text) of every label, with the largest width that it may have.
    """
    boxes = []
    for element in root.iter(f"{SVG}text"):
        size, width = float(element.get("font-size")), 0.0
        width = text_width(element.text or "", size)
        left = float(element.get("x")) - SHARE_START[element.get("text-anchor")] * width
        base = float(element.get("y"))
        boxes.append((left, base - 0.8 * size, left + width, base + 0.1 * size, element.text))
    return boxes


def assert_whole(picture):
    """
    Fail unless all labels and shapes are within the canvas, and the title is the picture's own.
    """
    root = parse(picture)
    assert root.find(f"{SVG}title").text == picture.title
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    slack = 0.01  # numbers have six digits, so hundredths are exact below 10,000
    for left, top, right, bottom, text in text_boxes(root):
        assert left >= -slack, text
        assert right <= width + slack, text
        assert top >= -slack, text
        assert bottom <= height + slack, text
    shapes = [element for element in root if element.tag in (f"{SVG}rect", f"{SVG}line")]
    for shape in shapes:
        if shape.tag == f"{SVG}rect":
            x, y = float(shape.get("x", 0)), float(shape.get("y", 0))
            assert min(float(shape.get("width")), float(shape.get("height"))) >= 0
            ends = [(x, y), (x + float(shape.get("width")), y + float(shape.get("height")))]
        else:
            ends = [(float(shape.get(f"x{k}")), float(shape.get(f"y{k}"))) for k in (1, 2)]
        for x, y in ends:
            assert -slack <= x <= width + slack
            assert -slack <= y <= height + slack


@pytest.mark.parametrize("name", SAMPLES)
def test_picture_is_whole(name):
    """
    Nothing leaves the canvas, where it would be cut off, and each picture has a title for screen
    readers.
    """
    assert_whole(SAMPLES[name])
    assert repr(SAMPLES[name]) == f"<Picture: {SAMPLES[name].title}>"


@pytest.mark.parametrize("name", SAMPLES)
def test_picture_has_no_label_over_another(name):
    """
    No label overlaps another, because neither could be read.
    """
    boxes = text_boxes(parse(SAMPLES[name]))
    for index, (left, top, right, bottom, text) in enumerate(boxes):
        for other in boxes[index + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (text, other[4])


def test_pictures_are_the_same_every_time():
    """
    The same data gives the same picture, because nbval compares pictures.
    """
    again = sample_pictures()
    for name, picture in SAMPLES.items():
        assert picture._repr_svg_() == again[name]._repr_svg_(), name


def test_every_picture_is_exported_and_sampled():
    """
    Every picture function is exported and has a sample, so that the tests of this file cover it.
    """
    assert pictures.__all__ == sorted(pictures.__all__)
    drawn = {name.partition("_")[0] + "_picture" for name in SAMPLES}
    elsewhere = {"Picture", "holdings_picture", "loss_plot", "processes_picture", "timeline_plot",
                 "timeline_tracks", "times_plot"}  # fmt: skip
    what_they_draw = {"numbers_in", "slices_from_rows", "steps_from_digits"}
    assert drawn | elsewhere | what_they_draw == set(pictures.__all__)


@pytest.mark.parametrize(
    "picture",
    [
        collective_picture(NASTY, [[NASTY]], [[NASTY + NASTY]]),
        buckets_picture([(NASTY, 4)], [[NASTY]]),
        timeline_picture([[("compute", 0, 1, NASTY), ("waiting", 1, 9, "<&>")]], NASTY),
        shards_picture({NASTY: 4}, {NASTY: [(0, 0, 4)]}),
        memory_picture([{NASTY: 100}]),
        steps_picture(RING.holdings(), RING.steps),
        samples_picture([[[1]]]),
    ],
)
def test_picture_escapes_what_it_draws(picture):
    """
    Names from learners are escaped, so that none breaks the XML or becomes a part of the page.
    """
    assert "<script" not in picture._repr_svg_()
    assert_whole(picture)


@pytest.mark.parametrize("name", SAMPLES)
def test_picture_refers_to_patterns_that_say_what_they_look_like(name):
    """
    A pattern's id describes its look, because the ids of several pictures meet on one page.
    """
    root, text = parse(SAMPLES[name]), SAMPLES[name]._repr_svg_()
    ids = [element.get("id") for element in root.iter(f"{SVG}pattern")]
    assert sorted(set(re.findall(r"url\(#([^)]*)\)", text))) == sorted(ids)
    for one in ids:
        pattern, _, colour = one.partition("-")
        assert pattern in PATTERNS
        assert re.fullmatch("[0-9a-f]{6}", colour)


def test_patterns_differ_without_colour():
    """
    The patterns differ without colour, so that kinds can be distinguished in grey.
    """
    canvas = Canvas(10, 10)
    fills = [canvas.fill(pattern, RANK_COLOURS[0]) for pattern in PATTERNS]
    assert len(set(fills)) == len(PATTERNS)
    shapes = re.findall("<pattern .*?</pattern>", canvas.picture("x").svg)
    looks = {re.sub('id="[^"]*"', "", shape) for shape in shapes}
    assert len(looks) == len(PATTERNS) - 2  # all but the solid and the hollow pattern


def test_text_width_of_wide_characters():
    """
    The width of text counts Chinese characters as wide as they are high.
    """
    assert text_width("层", 10) == 11
    assert text_width("ab", 10) == 12.4


def test_shorten_marks_what_it_cut():
    """
    A shortened name is marked, so that it does not look like another whole name.
    """
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"


@settings(max_examples=40)
@given(data=st.data())
def test_timeline_of_anything_is_whole(data):
    """
    Any measured times are drawn within the canvas.
    """
    time = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, allow_subnormal=False))
    span = st.tuples(
        st.sampled_from(["compute", "communication", "waiting"]), time, time, st.text(max_size=30)
    ).map(lambda s: (s[0], min(s[1:3]), max(s[1:3]), s[3]))
    tracks = data.draw(st.lists(st.lists(span, max_size=6), min_size=1, max_size=5))
    if any(stop >= 1e-6 for spans in tracks for _, _, stop, _ in spans):
        assert_whole(timeline_picture(tracks, "time in s"))


@settings(max_examples=40)
@given(
    batches=st.lists(
        st.lists(st.lists(st.integers(0, 9999), max_size=5), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_samples_of_anything_are_whole_and_counted(batches):
    """
    Any batches are drawn within the canvas, and the number of hatched cells equals the number of
    repeated samples.
    """
    picture = samples_picture(batches, num_samples=10_000)
    assert_whole(picture)
    seen = [sample for row in batches for batch in row for sample in batch]
    hatched = [r for r in parse(picture).iter(f"{SVG}rect") if "hatch" in r.get("fill", "")]
    assert len(hatched) - 1 == len(seen) - len(set(seen))  # one belongs to the legend


@settings(max_examples=40)
@given(data=st.data())
def test_shards_of_anything_are_whole(data):
    """
    Any slices, also torn, copied and missing ones, are drawn within the canvas.
    """
    size = data.draw(st.integers(0, 50))
    row = st.integers(0, size)
    part = st.tuples(st.integers(0, 9), row, row).map(lambda p: (p[0], min(p[1:]), max(p[1:])))
    saved, loaded = (data.draw(st.lists(part, max_size=6)) for _ in range(2))
    assert_whole(shards_picture({"w": size}, {"w": saved}, {"w": loaded}))


@settings(max_examples=40)
@given(
    used=st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2**40)), min_size=1, max_size=5
    )
)
def test_memory_of_anything_is_whole(used):
    """
    Any amounts of memory, from one byte to a tebibyte, are drawn within the canvas.
    """
    if any(used):
        assert_whole(memory_picture(used))
