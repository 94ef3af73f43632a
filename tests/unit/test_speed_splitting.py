"""
Time intervals, and how they split a step: compute, communication, waiting, other, and hidden
communication.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_lessons.errors import BadInput
from ddp_lessons.speed import (
    clock_offsets_s,
    difference,
    in_ms,
    intersection,
    last_calls,
    length,
    on_one_clock,
    split_steps,
    summed_s,
    union,
    with_waiting,
)

moments = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


def seconds_in(intervals):
    """
    Return the whole numbers s for which s to s + 1 lies in the intervals, as a second way to
    represent them.
    """
    return {second for start, end in intervals for second in range(start, end)}


@given(moments, moments)
def test_intervals_are_the_sets_of_their_moments(some, others):
    """
    Operations on intervals agree with those on sets of whole seconds, also for intervals that
    touch, overlap or are empty.
    """
    one, other = seconds_in(some), seconds_in(others)
    for got, expected in (
        (union(some), one),
        (intersection(some, others), one & other),
        (difference(some, others), one - other),
    ):
        assert seconds_in(got) == expected
        assert length(got) == len(expected)
        assert got == sorted(got)
        assert all(start < end for start, end in got)
    assert length(some) == len(one)


def test_interval_that_ends_before_it_starts_is_refused():
    """
    An interval that ends before it starts is refused: times of two clocks in one list would give
    durations below 0.
    """
    with pytest.raises(BadInput, match=r"Bad interval: .*got 2 to 1"):
        union([(2, 1)])


def split_by_the_moment(tracks, unit):
    """
    Split tracks moment by moment, as an independent implementation of the rules.
    """
    calls = [[span for span in track if span[0] == "communication"] for track in tracks]
    calls = [sorted(own, key=lambda span: span[1:3]) for own in calls]
    rows = []
    for track, own in zip(tracks, calls, strict=True):
        counts = dict.fromkeys(("compute", "communication", "waiting", "other", "hidden"), 0)
        first, last = min(span[1] for span in track), max(span[2] for span in track)
        for moment in range(first, last):
            computes = any(k == "compute" and a <= moment < b for k, a, b in track)
            open_calls = [k for k, (_, a, b) in enumerate(own) if a <= moment < b]
            all_there = [k for k in open_calls if all(c[k][1] <= moment for c in calls)]
            counts["hidden"] += bool(computes and open_calls)
            if computes:
                counts["compute"] += 1
            elif all_there:
                counts["communication"] += 1
            else:
                counts["waiting" if open_calls else "other"] += 1
        rows.append({name: unit * number for name, number in counts.items()})
    return rows


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(20))
def test_split_is_that_of_every_single_moment(world_size, seed):
    """
    `split_steps` agrees with the split of every single moment, for random queued buckets, calls
    during compute, and late ranks.
    """
    draw = random.Random(f"{world_size} {seed}")
    num_calls, tracks = draw.randint(0, 3), []
    for _ in range(world_size):
        now, track = draw.randint(0, 5), []
        track.append(("compute", now, now + draw.randint(1, 6)))
        for _ in range(num_calls):
            now += draw.randint(0, 6)
            track.append(("communication", now, now + draw.randint(1, 9)))
            if draw.random() < 0.7:
                start = now + draw.randint(0, 4)
                track.append(("compute", start, start + draw.randint(1, 6)))
        draw.shuffle(track)
        tracks.append(track)
    expected = split_by_the_moment(tracks, 1)
    for split, track, right in zip(split_steps(tracks), tracks, expected, strict=True):
        got = {name: getattr(split, f"{name}_s") for name in right}
        assert got == right
        assert split.step_s == max(span[2] for span in track) - min(span[1] for span in track)


def test_split_tells_a_late_rank_from_a_slow_link():
    """
    A late rank and a slow link are distinguished. The sums of durations are the same for both: an
    all-reduce of 8 seconds.
    """
    late = [
        [("compute", 0, 2), ("communication", 2, 10)],
        [("compute", 0, 9), ("communication", 9, 10)],
    ]
    slow = [[("compute", 0, 2), ("communication", 2, 10)] for _ in range(2)]
    assert summed_s(late[0]) == summed_s(slow[0]) == {"compute": 2, "communication": 8}
    (first, _), (other, _) = split_steps(late), split_steps(slow)
    assert (first.waiting_s, first.communication_s) == (7, 1)
    assert (other.waiting_s, other.communication_s) == (0, 8)
    assert last_calls(late) == [9]


def test_pictured_waiting_is_the_waiting_that_is_counted():
    """
    The waiting in the picture equals the waiting that is counted, because a reader sees both.
    """
    tracks = [
        [("compute", 0, 4, "forward"), ("communication", 3, 12, "bucket 1")],
        [("compute", 0, 9, "forward"), ("communication", 8, 12, "bucket 1")],
    ]
    drawn = with_waiting(tracks)
    for split, track in zip(split_steps(tracks), drawn, strict=True):
        waiting = [(start, end) for kind, start, end, *_ in track if kind == "waiting"]
        assert length(waiting) == split.waiting_s
    assert drawn[0][0] == ("compute", 0, 4, "forward")
    assert ("communication", 8, 12) in drawn[0]
    assert [span[0] for span in drawn[1]] == ["compute", "communication"]


@pytest.mark.parametrize(
    ("tracks", "message"),
    [
        ([], "Nothing to split"),
        ([[("compute", 0, 1)], []], "Nothing to split"),
        ([[("waiting", 0, 1)]], "Unknown kind: .*got 'waiting'"),
        ([[("compute", 0, 1)], [("communication", 0, 1)]], r"Ranks differ: .*got \[0, 1\]"),
    ],
)
def test_split_refuses_what_is_no_step(tracks, message):
    """
    Tracks that are no step are refused: if ranks have different numbers of calls, there is no
    moment at which the last rank called.
    """
    with pytest.raises(BadInput, match=message):
        split_steps(tracks)


def test_clocks_that_differ_are_brought_together():
    """
    Clocks that differ are aligned by barriers. Rank 1's clock is 100 s behind, and it left one
    barrier late, which the median ignores.
    """
    offsets_s = clock_offsets_s([[200.0, 201.0, 202.0], [100.0, 101.5, 102.0]])
    assert offsets_s == [0, 100]
    tracks = [[("compute", 200.0, 203.0, "forward")], [("compute", 99.5, 102.0)]]
    moved = on_one_clock(tracks, offsets_s)
    assert moved == [[("compute", 0.5, 3.5, "forward")], [("compute", 0.0, 2.5)]]
    assert on_one_clock(tracks)[1] == [("compute", 0, 2.5)]
    assert on_one_clock([]) == []
    assert in_ms(moved)[0] == [("compute", 500.0, 3500.0, "forward")]


def test_clocks_without_barriers_are_refused():
    """
    Clocks without common barriers are refused, because nothing else shows their difference.
    """
    with pytest.raises(BadInput, match=r"Bad barriers: .*got \[2, 1\]"):
        clock_offsets_s([[1.0, 2.0], [1.0]])
    with pytest.raises(BadInput, match="Bad barriers"):
        clock_offsets_s([])
    with pytest.raises(BadInput, match=r"Bad offsets: .*2 ranks \(got 1\)"):
        on_one_clock([[], []], [0.0])
