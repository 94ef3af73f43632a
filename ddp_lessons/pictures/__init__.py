"""
Pictures of what ranks do: SVG from plain data, PNG for what was measured. No torch here.

The same data give the same bytes, so a picture in a notebook is a test of what it shows.
"""

from ddp_lessons.pictures.buckets import buckets_picture
from ddp_lessons.pictures.collectives import (
    collective_picture,
    collectives_picture,
    exchange_picture,
    numbers_in,
)
from ddp_lessons.pictures.holdings import holdings_picture
from ddp_lessons.pictures.memory import memory_picture
from ddp_lessons.pictures.mesh import mesh_picture
from ddp_lessons.pictures.plots import loss_plot, timeline_plot, times_plot
from ddp_lessons.pictures.processes import processes_picture
from ddp_lessons.pictures.samples import samples_picture
from ddp_lessons.pictures.shards import shards_picture, slices_from_rows
from ddp_lessons.pictures.steps import steps_from_digits, steps_picture
from ddp_lessons.pictures.svg import Picture
from ddp_lessons.pictures.timeline import timeline_picture
from ddp_lessons.pictures.timetable import timetable_picture
from ddp_lessons.pictures.tracks import timeline_tracks

__all__ = [
    "Picture",
    "buckets_picture",
    "collective_picture",
    "collectives_picture",
    "exchange_picture",
    "holdings_picture",
    "loss_plot",
    "memory_picture",
    "mesh_picture",
    "numbers_in",
    "processes_picture",
    "samples_picture",
    "shards_picture",
    "slices_from_rows",
    "steps_from_digits",
    "steps_picture",
    "timeline_picture",
    "timeline_plot",
    "timeline_tracks",
    "times_plot",
    "timetable_picture",
]
