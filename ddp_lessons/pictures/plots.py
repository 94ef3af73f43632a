"""
Plots of what was measured. They are PNG, because measured numbers differ from run to run.
"""

import io

from ddp_lessons.pictures.svg import FAINT, INK, PANEL, rank_colour

_DASHES = ("-", "--", "-.", ":")


class Plot:
    """
    A finished plot, which draws itself in a notebook.

    Args:
        title: What it shows, in one line.
        png: The image.
    """

    def __init__(self, title, png):
        self.title = title
        self.png = png

    def __repr__(self):
        return f"<Plot: {self.title}>"

    def _repr_png_(self):
        return self.png


def _plot(title, figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Plot(title, buffer.getvalue())


def loss_plot(losses):
    """
    Plot the loss of each rank over its steps.

    Args:
        losses: For each rank, in rank order, its losses, one a step.

    Returns:
        Plot: Loss over steps, on a logarithmic axis, a line a rank.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), dpi=110, facecolor=PANEL, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(PANEL)
    for rank, values in enumerate(losses):
        dash = _DASHES[rank % len(_DASHES)]
        axes.plot(values, dash, color=rank_colour(rank), label=f"rank {rank}", linewidth=1.8)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("cross-entropy on its own digits", color=INK)
    axes.set_yscale("log")
    axes.tick_params(colors=FAINT, which="both")
    axes.legend(frameon=False)
    return _plot("loss of each rank over its steps", figure)
