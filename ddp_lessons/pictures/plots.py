"""
Plots of what was measured. They are PNG, because measured numbers differ from run to run.
"""

import io
from collections.abc import Collection, Iterable, Mapping, Sequence

from ddp_lessons.pictures.inputs import is_amount, need, need_some
from ddp_lessons.pictures.svg import FAINT, INK, LINE, PANEL, rank_colour
from ddp_lessons.pictures.timeline import Span, check_tracks, lanes_of

_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "x")
_HATCHES = {"compute": "", "communication": "////", "waiting": ".."}


class Plot:
    """
    A finished plot, which draws itself in a notebook.

    Args:
        title: A line that says what it shows.
        png: The image.
    """

    def __init__(self, title: str, png: bytes) -> None:
        self.title = title
        self.png = png

    def __repr__(self) -> str:
        return f"<Plot: {self.title}>"

    def _repr_png_(self):
        return self.png


def _plot(title, figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Plot(title, buffer.getvalue())


def loss_plot(losses: Iterable[Sequence[float]]) -> Plot:
    """
    Plot the loss of each rank over its steps.

    Args:
        losses: For each rank, in rank order, its losses, one a step.

    Returns:
        Plot: Loss over steps, on a logarithmic axis, a line a rank.
    """
    figure, axes = _axes(6.4, 3.2)
    for rank, values in enumerate(losses):
        dash = _DASHES[rank % len(_DASHES)]
        axes.plot(values, dash, color=rank_colour(rank), label=f"rank {rank}", linewidth=1.8)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("cross-entropy on its own digits", color=INK)
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return _plot("loss of each rank over its steps", figure)


def timeline_plot(tracks: Sequence[Sequence[Span]], axis: str) -> Plot:
    """
    Plot what each rank does over measured time, as `timeline_picture` draws it over events.

    Measured times differ from run to run, so they are a PNG, which nbval does not compare.

    Args:
        tracks: As in `timeline_picture`; `timeline_tracks` makes them from a trace.
        axis: The axis label, a quantity with its unit: "time in microseconds".

    Returns:
        Plot: A few lanes for each rank over one axis.

    Raises:
        BadInput: As in `timeline_picture`.

    Lessons: 04_samplers, 11_speed.
    """
    from matplotlib.patches import Patch

    end = check_tracks(tracks, axis)
    lanes = [lanes_of(spans) or [[]] for spans in tracks]
    figure, axes = _axes(6.4, 0.9 + 0.26 * sum(map(len, lanes)))
    y, places = 0.0, []
    for rank, own in enumerate(lanes):
        places.append(y + (len(own) - 1) / 2)
        for lane in own:
            for kind, start, stop, *_ in lane:
                colour = rank_colour(rank)
                axes.barh(y, stop - start, left=start, height=0.8, hatch=_HATCHES[kind],
                          facecolor=colour if kind == "compute" else "white",
                          edgecolor=PANEL if kind == "compute" else colour)  # fmt: skip
            y += 1
        y += 0.5
    axes.set_yticks(places, [f"rank {rank}" for rank in range(len(lanes))])
    axes.set_ylim(y - 0.9, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel(axis, color=INK)
    used = {span[0] for spans in tracks for span in spans}
    samples = [
        Patch(facecolor=FAINT if kind == "compute" else "white", edgecolor=FAINT, hatch=hatch,
              label=kind)
        for kind, hatch in _HATCHES.items() if kind in used
    ]  # fmt: skip
    axes.legend(handles=samples, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return _plot(f"what {len(tracks)} ranks did: {axis}", figure)


def times_plot(
    measured: Mapping[str, Collection[tuple[float, float]]],
    predicted: Mapping[str, Collection[tuple[float, float, float, float]]] | None = None,
) -> Plot:
    """
    Plot measured seconds over bytes, and what a model predicts, on logarithmic axes.

    Args:
        measured: Dictionary from the name of what was measured to its pairs (bytes, seconds).
        predicted: Dictionary from the name of a model to tuples (bytes, seconds, low, high): a
            line and the band in which a measurement should lie. None plots no model.

    Returns:
        Plot: A marker of its own for each name, a line for each model.

    Raises:
        BadInput: Nothing was measured, or a number is not above 0, so that it has no logarithm.

    Lesson: 17_many_machines.
    """
    predicted = predicted or {}
    need_some(measured, "measurements")
    for name, points in [*measured.items(), *predicted.items()]:
        need_some(points, f"points of {name!r}")
        for num_bytes, seconds, *_ in points:
            need(is_amount(num_bytes) and is_amount(seconds) and min(num_bytes, seconds) > 0,
                 "No logarithm", "bytes and seconds above 0",
                 f"{num_bytes!r} and {seconds!r} of {name!r}", "Leave it out")  # fmt: skip
    figure, axes = _axes(6.4, 3.6)
    for number, (name, points) in enumerate(measured.items()):
        axes.plot([point[0] for point in points], [point[1] for point in points], label=name,
                  linestyle="none", marker=_MARKERS[number % len(_MARKERS)],
                  color=rank_colour(number))  # fmt: skip
    for number, (name, points) in enumerate(predicted.items()):
        # From here on, `seconds` are a column.
        sizes, seconds, low, high = zip(*sorted(points), strict=True)  # type: ignore[assignment]
        axes.plot(sizes, seconds, _DASHES[number % len(_DASHES)], color=rank_colour(number),
                  label=name)  # fmt: skip
        # A lower bound of 0 has no logarithm: the band then goes down to the edge of the picture.
        floor = min(point[1] for points in measured.values() for point in points) / 10
        axes.fill_between(sizes, [max(floor, value) for value in low], high, alpha=0.15,
                          color=rank_colour(number))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes", color=INK)
    axes.set_ylabel("seconds", color=INK)
    axes.legend(frameon=False)
    return _plot(f"seconds over bytes: {', '.join([*measured, *predicted])}", figure)


def _axes(width, height):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, facecolor=PANEL, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(PANEL)
    axes.tick_params(colors=FAINT, which="both")
    axes.spines[:].set_color(LINE)
    return figure, axes
