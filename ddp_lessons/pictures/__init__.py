"""
Pictures of what ranks do: SVG from plain data, PNG for what was measured. No torch here.

The same data give the same bytes, so a picture in a notebook is a test of what it shows.
"""

from ddp_lessons.pictures.holdings import holdings_picture
from ddp_lessons.pictures.plots import loss_plot
from ddp_lessons.pictures.processes import processes_picture

__all__ = ["holdings_picture", "loss_plot", "processes_picture"]
