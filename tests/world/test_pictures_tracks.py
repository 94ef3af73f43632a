"""
A timeline drawn from a trace shows what was recorded.
"""

from types import SimpleNamespace

import pytest
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import timeline_picture, timeline_tracks


def placed(
    kind, start, end, rank=0, name="x", backward=None, wait_ns=(None, None), ranks=(), sequence=None
):
    """
    Return an event on a clock, with the fields that a timeline reads.
    """
    event = SimpleNamespace(
        kind=kind, name=name, rank=rank, backward=backward, start_ns=5_000,
        wait_start_ns=wait_ns[0], wait_end_ns=wait_ns[1], group="0", ranks=ranks, sequence=sequence,
    )  # fmt: skip
    return SimpleNamespace(event=event, start=start, end=end)


def test_timeline_tracks_sort_events_into_kinds():
    """
    Marks are moments and become no span. A backward pass lasts from its first gradient to its last.
    """
    tracks = timeline_tracks(
        [
            placed("span", 0, 4, name="forward"),
            placed("mark", 1, 1),
            placed("gradient", 5, 5, backward=0),
            placed("collective", 6, 9, name="all_reduce"),
            placed("gradient", 7, 7, backward=0),
            placed("gradient", 11, 11, backward=1),
            placed("message", 2, 3, rank=2, name="send"),
        ]
    )
    assert tracks == [
        [
            ("compute", 0, 4, "forward"),
            ("communication", 6, 9, "all_reduce"),
            ("compute", 5, 7, "backward"),
            ("compute", 11, 11, "backward"),
        ],
        [],
        [("communication", 2, 3, "send")],
    ]


def test_timeline_tracks_show_what_never_ended():
    """
    A call that never ended is drawn to the end of the trace, because a rank that waits for ever is
    the most interesting one.
    """
    tracks = timeline_tracks([placed("collective", 1, None, name="a"), placed("message", 2, 8)])
    assert tracks[0][0] == ("communication", 1, 8, "a, never ended")
    assert timeline_tracks([placed("span", 1, None)]) == [[]]


def test_timeline_tracks_show_waiting_on_the_wall_clock_only():
    """
    Waiting is drawn only on the wall clock. The logical clock has no durations.
    """
    wait_ns = (7_000, 9_500)
    wall = timeline_tracks([placed("collective", 10.0, 20.0, wait_ns=wait_ns)])
    assert wall[0][1] == ("waiting", 12.0, 14.5, "wait")
    assert len(timeline_tracks([placed("collective", 10, 20, wait_ns=wait_ns)])[0]) == 1
    assert len(timeline_tracks([placed("collective", 10.0, 20.0)])[0]) == 1


def test_timeline_tracks_draw_a_collective_as_waiting_until_its_last_rank_has_come():
    """
    A rank that comes early to a collective waits, so that time is not drawn as communication. If a
    rank never came, nobody knows how long the others waited for it.
    """
    early, late = (
        {"ranks": (0, 1), "sequence": 4, "name": "all_reduce", "rank": rank} for rank in (0, 1)
    )
    calls = [placed("collective", 10.0, 20.0, **early), placed("collective", 18.0, 21.0, **late)]
    assert timeline_tracks(calls) == [
        [("waiting", 10.0, 18.0, "wait"), ("communication", 18.0, 20.0, "all_reduce")],
        [("communication", 18.0, 21.0, "all_reduce")],
    ]
    assert timeline_tracks(calls[:1]) == [[("communication", 10.0, 20.0, "all_reduce")]]
    logical = [placed("collective", 1, 3, **early), placed("collective", 2, 3, **late)]
    assert [len(spans) for spans in timeline_tracks(logical)] == [1, 1]


def test_timeline_tracks_come_in_another_unit():
    """
    A timeline may have another unit: an axis of seconds in microseconds would be unreadable.
    """
    spans = timeline_tracks([placed("collective", 1500.0, 4000.0, name="a")], per_unit=1000)
    assert spans == [[("communication", 1.5, 4.0, "a")]]


def test_timeline_tracks_of_nothing_are_refused():
    """
    An empty trace is refused, because it means that recording was off.
    """
    with pytest.raises(BadInput, match="No events to draw"):
        timeline_tracks([])


def _traced_ring(rank, world_size):
    import torch

    from ddp_lessons.ring import textbook
    from ddp_lessons.trace import gather, merge, trace

    with trace() as events:
        textbook.all_reduce(torch.ones(8))
    traces = gather(events)
    return timeline_tracks(merge(traces)), timeline_tracks(merge(traces, clock="wall"))


def test_timeline_of_a_real_ring_is_the_same_on_every_rank_and_run():
    """
    On the logical clock the picture is the same on every rank and in every run, so nbval can
    compare it.
    """
    runs = [run_world(3, _traced_ring) for _ in range(2)]
    pictures = {
        timeline_picture(logical, "events, in order")._repr_svg_()
        for run in runs
        for logical, _ in run
    }
    assert len(pictures) == 1
    logical, wall = runs[0][0]
    for tracks in (logical, wall):
        assert [sum(s[0] == "communication" for s in spans) for spans in tracks] == [8, 8, 8]
    assert any(span[0] == "waiting" for spans in wall for span in spans)
    timeline_picture(wall, "time in microseconds")
