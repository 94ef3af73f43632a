"""
When each rank computes, communicates and waits, on one axis.
"""

from collections.abc import Sequence

from ddp_lessons.pictures.inputs import is_amount, need, need_some
from ddp_lessons.pictures.scales import ticks
from ddp_lessons.pictures.svg import FAINT, PANEL, Canvas, Picture, rank_colour, shorten, text_width

KINDS = {"compute": "solid", "communication": "hatch", "waiting": "dots"}
"""
Each kind of activity of a rank, and the pattern that shows it.
"""

Span = tuple[str, float, float] | tuple[str, float, float, str]
"""
An interval in which a rank does one thing: (kind, start, stop), or (kind, start, stop, label).
"""

_LEFT, _WIDTH, _LANE, _TOP, _GAP = 92, 680, 24, 44, 12


def timeline_picture(tracks: Sequence[Sequence[Span]], axis: str) -> Picture:
    """
    Draw what each rank does over time.

    Communication has lanes of its own under compute and waiting, so that overlap is seen. A span
    that overlaps another in its lane gets a further lane. For measured times use `timeline_plot`:
    nbval compares this picture, byte for byte.

    Args:
        tracks: For each rank, in rank order, its spans: (kind, start, stop) or (kind, start, stop,
            label). A kind is "compute", "communication" or "waiting". A label that does not fit
            into its span is left out.
        axis: The axis label, a quantity with its unit: "time in ms", "events, in order".

    Returns:
        Picture: A few lanes for each rank over one axis. It starts at 0.

    Raises:
        BadInput: There is no rank, no span or no axis label, a kind is not known, or a span stops
            before it starts or starts before 0.

    Lessons: 05_replicas, 11_speed.
    """
    end = check_tracks(tracks, axis)
    whole = all(isinstance(time, int) for spans in tracks for s in spans for time in s[1:3])
    lanes = [lanes_of(spans) for spans in tracks]
    height = _TOP + sum(_height(one) + _GAP for one in lanes)
    canvas = Canvas(_LEFT + _WIDTH + 30, height + 46)
    canvas.legend(_LEFT, 20, list(KINDS.items()))
    for tick in ticks(end, 8, whole):
        x = _LEFT + tick / end * _WIDTH
        canvas.line(x, _TOP - 6, x, height + 4, stroke="#dfe3ea")
        canvas.text(x, height + 14, f"{tick:g}", FAINT, 11)
    y = _TOP
    for rank, one in enumerate(lanes):
        canvas.chip(10, y + _height(one) / 2 - 13, rank)
        for lane in one:
            for span in lane:
                _bar(canvas, y, rank, span, end)
            y += _LANE
        y += _height(one) - _LANE * len(one) + _GAP
        if rank + 1 < len(lanes):
            canvas.line(_LEFT, y - _GAP / 2, _LEFT + _WIDTH, y - _GAP / 2)
    canvas.line(_LEFT, height + 4, _LEFT + _WIDTH, height + 4, stroke=FAINT)
    canvas.text(_LEFT + _WIDTH / 2, height + 33, axis, size=12)
    return canvas.picture(f"When {len(tracks)} ranks compute, communicate and wait: {axis}")


def check_tracks(tracks: Sequence[Sequence[Span]], axis: str) -> float:
    """
    Refuse what is no timeline, and return where it ends.

    Args:
        tracks: As in `timeline_picture`.
        axis: As in `timeline_picture`.

    Raises:
        BadInput: As in `timeline_picture`.
    """
    need_some(tracks, "ranks")
    need(bool(str(axis).strip()), "No unit on the axis", "what it counts, with its unit",
         "nothing", "Pass for example 'time in ms'")  # fmt: skip
    for rank, spans in enumerate(tracks):
        for span in spans:
            _check_span(rank, span)
    stops = [span[2] for spans in tracks for span in spans]
    need_some(stops, "spans")
    need(max(stops) > 0, "Nothing lasts", "a span that stops after 0", "none", "Pass times")
    return max(stops)


def _check_span(rank, span):
    need(len(span) in (3, 4), "Bad span", "(kind, start, stop) and perhaps a label",
         f"{len(span)} values on rank {rank}", "Pass three or four")  # fmt: skip
    need(span[0] in KINDS, "Unknown kind", f"one of {', '.join(KINDS)}",
         f"{span[0]!r} on rank {rank}", "Pass one of these")  # fmt: skip
    start, stop = span[1:3]
    need(is_amount(start) and is_amount(stop) and start <= stop, "Bad span",
         "a start of at least 0 and a stop not before it",
         f"{start!r} to {stop!r} on rank {rank}", "Check the clock")  # fmt: skip


def _height(lanes):
    # A rank that does nothing still has a row for its name.
    return _LANE * max(1, len(lanes))


def lanes_of(spans: Sequence[Span]) -> list[list[Span]]:
    """
    Return spans in lanes in which none overlap: compute and waiting first, then communication.

    Args:
        spans: Those of one rank.
    """
    lanes = []
    for talks in (False, True):
        own = []
        chosen = [span for span in spans if (span[0] == "communication") == talks]
        for span in sorted(chosen, key=lambda span: span[1:3]):
            free = next((lane for lane in own if lane[-1][2] <= span[1]), None)
            if free is None:
                own.append([span])
            else:
                free.append(span)
        lanes += own
    return lanes


def _bar(canvas, y, rank, span, end):
    kind, start, stop, *label = span
    x, width = _LEFT + start / end * _WIDTH, (stop - start) / end * _WIDTH
    fill = canvas.fill(KINDS[kind], rank_colour(rank))
    # An event without length is drawn too, as a thin bar.
    canvas.box(x, y + 2, max(width, 2), _LANE - 4, fill=fill, radius=2,
               stroke=PANEL if kind == "compute" else rank_colour(rank))  # fmt: skip
    text = shorten(label[0]) if label else ""
    if text and text_width(text, 11) + 8 <= width:
        if kind == "compute":
            canvas.text(x + width / 2, y + _LANE / 2, text, "#ffffff", 11, bold=True)
        else:
            canvas.tag(x + width / 2, y + _LANE / 2, text)
