"""
Each picture shows all its data, once and in the right place, and refuses data that it cannot show.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_pictures import ALL_GATHER, BUCKETS, PARAMETERS, RING, SVG, TRACK, parse

from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import (
    buckets_picture,
    collective_picture,
    collectives_picture,
    exchange_picture,
    memory_picture,
    numbers_in,
    samples_picture,
    shards_picture,
    slices_from_rows,
    steps_picture,
    timeline_picture,
)
from ddp_lessons.pictures.scales import byte_text, ticks
from ddp_lessons.pictures.svg import rank_colour


def texts(picture):
    """
    Return all texts of a picture, in order.
    """
    return [element.text for element in parse(picture).iter(f"{SVG}text")]


def rects(picture, **attributes):
    """
    Return the rectangles of a picture with some attributes. An underscore stands for a hyphen.
    """
    return [
        element
        for element in parse(picture)
        if element.tag == f"{SVG}rect"
        and all(element.get(k.replace("_", "-")) == v for k, v in attributes.items())
    ]


def test_collective_picture_draws_each_value_once():
    """
    Each value that a rank holds is drawn once.
    """
    picture = collective_picture("all_reduce", [["a", "b"], ["c"]], [["d", "b"], ["e"]])
    drawn = texts(picture)
    for value in "acde":
        assert drawn.count(value) == 1
    assert drawn.count("b") == 2  # before and after the collective
    assert {"before", "after", "all_reduce", "rank 0", "rank 1"} <= set(drawn)
    assert len(rects(picture, stroke_width="3")) == 2  # the changed values d and e


def test_collective_picture_shows_what_was_never_there():
    """
    None is drawn as missing. Zero and the empty text are values.
    """
    picture = collective_picture("gather", [[None], [0]], [["", 0], []])
    assert len(rects(picture, stroke_dasharray="4 3")) == 1 + 2  # one before, rank 1's two after
    assert len(rects(picture, stroke_width="3")) == 2
    assert texts(picture)[-1] == "thick border: changed, dashed: nothing"


def test_collective_picture_explains_only_what_it_shows():
    """
    Dashed cells are in the legend only if there are some.
    """
    picture = collective_picture("all_reduce", [[1], [2]], [[3], [3]])
    assert texts(picture)[-1] == "thick border: changed"


def test_exchange_picture_marks_no_change():
    """
    A rank's result is another tensor than the one it gave, so no border says that it has changed.
    """
    picture = exchange_picture("scatter", [[torch.tensor([7]), torch.tensor([8])], None],
                               [torch.tensor([7]), torch.tensor([8])])  # fmt: skip
    assert {"gives", "gets", "scatter", "dashed: nothing"} <= set(texts(picture))
    assert texts(picture).count("7") == texts(picture).count("8") == 2
    assert not rects(picture, stroke_width="3")
    assert len(rects(picture, stroke_dasharray="4 3")) == 2  # rank 1 gives nothing


def test_collectives_picture_draws_each_as_it_is_drawn_alone():
    """
    Each panel is the same as in a picture of its own, in the given order, and the note is drawn
    once.
    """
    held = [[("reduce", ["a"], ["b"]), ("gather", ["c"], ["d", "e"])], [("reduce", [], []),
            ("gather", [None], ["f", "g"])]]  # fmt: skip
    alone = []
    for rows in zip(*held, strict=True):
        picture = collective_picture(rows[0][0], [row[1] for row in rows], [row[2] for row in rows])
        *panel, note = texts(picture)
        alone += panel
    together = texts(collectives_picture(held))
    assert together == [*alone, note]


def test_collectives_picture_goes_to_the_next_line_when_there_is_no_room():
    """
    Panels continue in a new row, because a picture wider than a page of about 900 pixels would have
    to be scrolled.
    """
    two = [[("one", ["a"], ["b"]), ("two", ["a"], ["b"])]]
    many = [[(f"number {k}", ["a"], ["b"]) for k in range(9)]]
    roots = [parse(collectives_picture(held)) for held in ([two[0][:1]], two, many)]
    widths = [float(root.get("width")) for root in roots]
    heights = [float(root.get("height")) for root in roots]
    assert widths[0] < widths[1] < widths[2] <= 900
    assert heights[0] == heights[1] < heights[2]


def test_steps_picture_draws_every_part_and_every_arrival():
    """
    The last panel shows all ranks in all chunks, and each message is one thick border.
    """
    picture = steps_picture(RING.holdings(), RING.steps)
    parts = [part for held in RING.holdings() for row in held for chunk in row for part in chunk]
    squares = [box for rank in range(4) for box in rects(picture, fill=rank_colour(rank))]
    chips = 7 * 4
    assert len(squares) == len(parts) + chips
    assert len(rects(picture, stroke_width="2.5")) == 6 * 4
    drawn = texts(picture)
    assert drawn.count("from rank 3") == 6  # rank 0 receives from rank 3 in every step
    assert sum(text.startswith("from rank") for text in drawn if text) == 24
    assert float(parse(picture).get("width")) <= 900


def test_steps_picture_shows_empty_chunks_and_many_in_one_message():
    """
    Empty chunks are drawn as holes, with which an all-gather starts. Recursive doubling fills
    several with one message.
    """
    picture = steps_picture(ALL_GATHER.holdings(), ALL_GATHER.steps)
    holes = [chunk for held in ALL_GATHER.holdings() for row in held for chunk in row if not chunk]
    assert len(rects(picture, stroke_dasharray="4 3")) == len(holes) > 0
    assert "from rank 0" in texts(picture)


def test_samples_picture_hatches_the_padding_of_distributed_sampler():
    """
    The padding of DistributedSampler is hatched: with ten samples on four ranks two are seen twice,
    which a check of values misses.
    """
    data = pytest.importorskip("torch.utils.data")
    rows = []
    for rank in range(4):
        sampler = data.DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)
        indices = list(sampler)
        rows.append([indices[:2], indices[2:]])
    picture = samples_picture(rows, num_samples=10)
    assert picture.title == "Samples that 4 ranks see in 2 steps: 12 seen, 2 of them repeats"
    drawn = texts(picture)
    assert [drawn.count(str(sample)) for sample in range(10)] == [2, 2] + [1] * 8
    assert "12 seen, 2 of them repeats; of 10 samples never seen: none" in drawn


def test_samples_picture_shows_ranks_that_see_the_same():
    """
    Ranks that all see the same samples are shown, as after a sampler that was not passed to the
    loader. The other samples are listed as never seen.
    """
    picture = samples_picture([[[0, 1]], [[0, 1]]], num_samples=20)
    assert "2 of them repeats" in picture.title
    last = next(text for text in texts(picture) if "never seen" in text)
    assert last.endswith("never seen: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 and 6 more")


def test_samples_picture_takes_the_integers_of_torch():
    """
    Indices may be tensors. They count as their numbers, although tensors in a set compare by
    identity.
    """
    torch = pytest.importorskip("torch")
    picture = samples_picture([[torch.tensor([0, 1])], [torch.tensor([1, 2])]])
    assert "4 seen, 1 of them repeats" in picture.title


def test_buckets_picture_names_every_parameter_on_both_sides():
    """
    Each parameter is named once in the model's order, and once in its bucket's order of sending.
    """
    picture = buckets_picture(PARAMETERS, BUCKETS)
    drawn = texts(picture)
    for name, _ in PARAMETERS:
        assert drawn.count(name) == 1
    assert [text for text in drawn if text[1:3] == ". "] == [
        "1. head.bias", "2. head.weight", "1. layers.1.bias", "2. layers.1.weight",
        "3. layers.0.bias", "1. layers.0.weight",
    ]  # fmt: skip
    assert "bucket 0: 2.54 KiB" in drawn  # 2,600 bytes
    assert "64 KiB, in no bucket" in drawn
    assert len(rects(picture, stroke_dasharray="4 3")) == 1
    assert len(parse(picture).findall(f"{SVG}line")) == 6


def test_timeline_picture_draws_spans_where_they_were():
    """
    The length of a bar is proportional to its time: 680 pixels for 12.5 ms.
    """
    picture = timeline_picture([TRACK], "time in ms")
    blue = rank_colour(0)
    bars = [
        box for box in rects(picture)
        if box.get("height") == "20" and (box.get("fill") == blue or blue[1:] in box.get("fill"))
    ]  # fmt: skip
    assert len(bars) == len(TRACK)
    at = sorted((float(b.get("x")), float(b.get("width"))) for b in bars)
    scale = 680 / 12.5
    wanted = sorted((92 + start * scale, (stop - start) * scale) for _, start, stop, _ in TRACK)
    # Numbers have six digits, so below 1,000 the error is half a unit of the last.
    assert at == [pytest.approx(pair, abs=5e-4) for pair in wanted]
    assert {"time in ms", "0", "2", "12", "bucket 1", "backward"} <= set(texts(picture))


def test_timeline_picture_gives_overlapping_spans_lanes_of_their_own():
    """
    Overlapping spans get separate lanes, so that two buckets under way at once are both visible.
    """
    picture = timeline_picture([TRACK], "time in ms")
    tops = {box.get("y") for box in rects(picture) if box.get("height") == "20"}
    assert len(tops) == 3  # compute and waiting, bucket 0, bucket 1


def test_timeline_picture_counts_events_in_whole_numbers():
    """
    The axis of events has whole numbers only.
    """
    picture = timeline_picture([[("compute", 0, 2)]], "events, in order")
    assert [text for text in texts(picture) if text[0].isdigit()] == ["0", "1", "2"]


def test_shards_picture_joins_what_moves():
    """
    Bands join the slices of writers and readers: from 4 ranks to 2, each reader takes from two
    writers.
    """
    saved = {"w": [(r, 4 * r, 4 * r + 4) for r in range(4)]}
    loaded = {"w": [(0, 0, 8), (1, 8, 16)]}
    picture = shards_picture({"w": 16}, saved, loaded)
    bands = [(b.get("fill"), b.get("points")) for b in parse(picture).iter(f"{SVG}polygon")]
    assert [fill for fill, _ in bands] == [rank_colour(rank) for rank in range(4)]
    drawn = texts(picture)
    assert [drawn.count(s) for s in ("0:4", "4:8", "8:12", "12:16", "0:8", "8:16")] == [1] * 6
    assert "w: 16 rows" in drawn
    assert "held by 4 ranks and loaded by 2 ranks" in picture.title


def test_shards_picture_shows_holes_copies_and_ranks_without_rows():
    """
    Holes, copies and ranks without rows are shown: a checkpoint with a hole cannot be loaded, and
    one with copies is too large.
    """
    picture = shards_picture({"w": 10}, {"w": [(0, 0, 4), (1, 2, 4), (2, 9, 9), (3, 6, 10)]})
    drawn = texts(picture)
    assert drawn.count("nobody") == 1
    assert "no rows saved: rank 2" in drawn
    tops = {box.get("y") for box in rects(picture, stroke="none")}
    assert len(tops) == 2  # the copy is drawn below
    thin = shards_picture({"w": 640}, {"w": [(5, 0, 12), (6, 12, 13), (7, 13, 640)]})
    assert "5" in texts(thin)  # there is room for the number only
    assert "6" not in texts(thin)


def test_memory_picture_bars_are_as_long_as_their_bytes():
    """
    Bars are as long as their bytes, with 560 pixels for the fullest rank, and each kind has one
    pattern everywhere.
    """
    picture = memory_picture([{"a": 1024, "b": 3072}, {"b": 2048, "a": 0}])
    bars = [box for box in rects(picture) if box.get("height") == "28"]
    assert [float(bar.get("width")) for bar in bars] == [140, 420, 280]
    assert [bar.get("fill").partition("-")[0] for bar in bars[1:]] == ["url(#hatch"] * 2
    drawn = texts(picture)
    assert {"memory in KiB", "a", "b", "4 KiB", "1 KiB", "3 KiB"} <= set(drawn)
    assert drawn.count("2 KiB") == 2  # the entry and the total
    named = memory_picture({"DDP": {"a": 1024, "b": 3072}, "a long way to go": {"b": 2048}})
    bars = [box for box in rects(named) if box.get("height") == "28"]
    assert [float(bar.get("width")) for bar in bars] == [140, 420, 280]
    assert {"DDP", "a long way\u2026"} <= set(texts(named))


@given(high=st.floats(1e-9, 1e15), most=st.integers(3, 12))
def test_ticks_are_few_round_and_reach_the_end(high, most):
    """
    Ticks are few and round, and the last is within a step of the end.
    """
    marks = ticks(high, most)
    assert marks[0] == 0
    assert 1 <= len(marks) - 1 <= most
    step = marks[1]
    assert f"{step:.0e}"[0] in "125"
    # The marks are multiples and quotients of doubles. The function allows an error of 1e-9.
    assert high - step * (1 + 1e-6) < marks[-1] <= high * (1 + 2e-9)


def test_byte_text_reads_well():
    """
    Sizes are whole where they are exact, and have three digits otherwise.
    """
    assert [byte_text(n) for n in (0, 1, 1023, 1024, 1536, 2**20, 10**9, 2**40, 2**51)] == [
        "0 B", "1 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "954 MiB", "1 TiB", "2048 TiB",
    ]  # fmt: skip


HELD = [[[(0,)]], [[(0,)]]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: collective_picture("x", [], []), "No ranks to draw"),
        (lambda: collective_picture("x", [[1]], []), "Ranks differ: expected 1 ranks after"),
        (lambda: collectives_picture([]), "No ranks to draw"),
        (lambda: collectives_picture([[]]), "No collectives to draw"),
        (
            lambda: collectives_picture([[("x", [], [])], []]),
            "Collectives differ: expected x on every rank .got none on rank 1",
        ),
        (lambda: steps_picture([], []), "No moments to draw"),
        (lambda: steps_picture([[]], []), "No ranks to draw"),
        (lambda: steps_picture(HELD, []), "Steps do not fit: expected 1 steps"),
        (lambda: steps_picture([[[()]], [[(), ()]]], [[]]), "Moments differ"),
        (lambda: steps_picture([[[()] * 9] * 9], []), "No room: expected 1 to 8 .*9 and 9"),
        (lambda: steps_picture([[[]]], []), "No room"),
        (lambda: steps_picture([[[(1,)]]], []), "No such rank"),
        (lambda: steps_picture(HELD, [[(0, 1, (0,))]]), "No such message: .*0 to 1"),
        (lambda: steps_picture(HELD, [[(0, 0, (1,))]]), "No such message: .*step 1"),
        (lambda: samples_picture([]), "No ranks to draw"),
        (lambda: samples_picture([[], []]), "No batches to draw"),
        (lambda: samples_picture([[[-1]]]), "No such sample: .*got -1"),
        (lambda: samples_picture([[[0.5]]]), "No such sample: .*got 0.5"),
        (lambda: samples_picture([[[True]]]), "No such sample"),
        (lambda: samples_picture([[[5]]], num_samples=5), "No such sample: .* below 5"),
        (lambda: samples_picture([[list(range(601))]]), "Too many samples"),
        (lambda: buckets_picture([], []), "No parameters to draw"),
        (lambda: buckets_picture([(str(k), 1) for k in range(121)], []), "Too many parameters"),
        (lambda: buckets_picture([("a", -1)], []), "Bad size"),
        (lambda: buckets_picture([("a", 1), ("a", 1)], []), "Parameter twice"),
        (lambda: buckets_picture([("a", 1)], [["b"]]), "Unknown parameter: .*'b' in bucket 0"),
        (lambda: buckets_picture([("a", 1)], [["a"], ["a"]]), "Parameter twice: .*in bucket 1"),
        (lambda: timeline_picture([], "s"), "No ranks to draw"),
        (lambda: timeline_picture([[]], "s"), "No spans to draw"),
        (lambda: timeline_picture([[("compute", 0, 1)]], " "), "No unit on the axis"),
        (lambda: timeline_picture([[("sleep", 0, 1)]], "s"), "Unknown kind: .*'sleep' on rank 0"),
        (lambda: timeline_picture([[("compute", 2, 1)]], "s"), "Bad span: .*2 to 1 on rank 0"),
        (lambda: timeline_picture([[("compute", 0, float("nan"))]], "s"), "Bad span"),
        (lambda: timeline_picture([[("compute", 0)]], "s"), "Bad span: .*2 values"),
        (lambda: timeline_picture([[("compute", 0, 0)]], "s"), "Nothing lasts"),
        (lambda: shards_picture({}, {}), "No tensors to draw"),
        (lambda: shards_picture({"a": 1}, {}), "Tensors differ in what is saved"),
        (lambda: shards_picture({"a": 1}, {"a": []}, {"b": []}), "differ in what is loaded"),
        (lambda: shards_picture({"a": -1}, {"a": []}), "Bad size"),
        (lambda: shards_picture({"a": 4}, {"a": [(0, 0, 5)]}), "Bad slice: .*0 to 5 of 'a'"),
        (lambda: shards_picture({"a": 4}, {"a": [(0, 0, 1)] * 33}), "Too many slices"),
        (lambda: memory_picture([]), "No ranks to draw"),
        (lambda: memory_picture([{}]), "Kinds do not fit: .*got 0"),
        (lambda: memory_picture([dict.fromkeys("abcdefg", 1)]), "Kinds do not fit: .*got 7"),
        (lambda: memory_picture([{"a": "1"}]), "Bad size: .*'1' for 'a', rank 0"),
    ],
)
def test_pictures_refuse_what_they_cannot_show(call, message):
    """
    Data that cannot be shown are refused, because a wrong picture would be believed.
    """
    with pytest.raises(BadInput, match=message):
        call()


def test_numbers_in_takes_what_a_collective_takes():
    """
    The numbers of a root's list, of a tensor and of None are read, because one picture draws them
    all.
    """
    table = torch.tensor([[1, 2], [3, 4]])
    assert numbers_in(table) == numbers_in(list(table)) == [1, 2, 3, 4]
    assert numbers_in(None) == []


def test_slices_from_rows_follow_each_other_and_leave_out_who_holds_none():
    """
    Slices follow each other in rank order, and ranks without rows are left out: 10 rows over 4
    ranks as `fully_shard` splits them, and 2 rows.
    """
    rows = [{"w": 3, "b": 1}, {"w": 3, "b": 1}, {"w": 3, "b": 0}, {"w": 1, "b": 0}]
    assert slices_from_rows(rows) == {
        "w": [(0, 0, 3), (1, 3, 6), (2, 6, 9), (3, 9, 10)],
        "b": [(0, 0, 1), (1, 1, 2)],
    }
    with pytest.raises(BadInput):
        slices_from_rows([])
