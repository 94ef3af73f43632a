"""
Calls of each picture function, with the data of a lesson and with awkward data.
"""

import xml.etree.ElementTree as ET

import torch

from ddp_lessons.costs import schedule
from ddp_lessons.pictures import (
    buckets_picture,
    collective_picture,
    collectives_picture,
    exchange_picture,
    memory_picture,
    mesh_picture,
    samples_picture,
    shards_picture,
    steps_picture,
    timeline_picture,
    timetable_picture,
)

SVG = "{http://www.w3.org/2000/svg}"
RING = schedule("all_reduce", "ring", 4, 8)
ALL_GATHER = schedule("all_gather", "recursive_doubling", 3, 8)
HUB = schedule("all_reduce", "hub", 8, 8)
WIDE = schedule("reduce_scatter", "ring", 8, 8)

PARAMETERS = [
    ("embed.weight", 65536), ("layers.0.weight", 16384), ("layers.0.bias", 256),
    ("layers.1.weight", 16384), ("layers.1.bias", 256), ("head.weight", 2560), ("head.bias", 40),
]  # fmt: skip
BUCKETS = [["head.bias", "head.weight"], ["layers.1.bias", "layers.1.weight", "layers.0.bias"],
           ["layers.0.weight"]]  # fmt: skip

TRACK = [
    ("compute", 0, 3, "forward"), ("compute", 3, 9, "backward"),
    ("communication", 5, 8, "bucket 0"), ("communication", 7, 11.5, "bucket 1"),
    ("waiting", 9, 11.5, "wait"), ("compute", 11.5, 12.5, "step"),
]  # fmt: skip


def parse(picture):
    """
    Return the root of a picture's SVG. Fails if the SVG is not well-formed.
    """
    return ET.fromstring(picture._repr_svg_())


def shards(num_ranks, num_rows):
    """
    Return even slices of rows over ranks. Slices differ by one row where the rows do not divide
    evenly.
    """
    cuts = [num_rows * rank // num_ranks for rank in range(num_ranks + 1)]
    return [(rank, cuts[rank], cuts[rank + 1]) for rank in range(num_ranks)]


def sample_pictures():
    """
    Return {name: picture} for the tests and for people who look at them.
    """
    sizes = {"embed.weight": 64, "head.bias": 3}
    return {
        "collective": collective_picture(
            "all_reduce", [[r, 10 * r, 1] for r in range(4)], [[6, 60, 1]] * 4
        ),
        "collective_gather": collective_picture(
            "gather", [["a"], ["bb"], []], [["a", "bb", None], [], ["a longer value than fits in"]]
        ),
        "collectives_rooted": collectives_picture(
            [
                [
                    ("scatter", [5, 6] if r == 0 else [], [5 + r]),
                    ("gather", [r], [0, 1][: 2 - 2 * r]),
                    ("all_to_all", [10**r] * 9, [10**r] * 9),
                ]
                for r in range(2)
            ]
        ),
        "exchange": exchange_picture(
            "gather",
            [torch.tensor([10**r]) for r in range(3)],
            [torch.tensor([[1], [10], [100]]), None, None],
        ),
        "steps_ring": steps_picture(RING.holdings(), RING.steps),
        "steps_gather": steps_picture(ALL_GATHER.holdings(), ALL_GATHER.steps),
        "steps_hub": steps_picture(HUB.holdings(), HUB.steps),
        "steps_wide": steps_picture(WIDE.holdings()[:3], WIDE.steps[:2]),
        "samples_padded": samples_picture(
            [[[0, 4, 8], [12, 1]], [[1, 5, 9], [13, 2]], [[2, 6, 10], [0, 3]], [[3, 7, 11], []]],
            num_samples=16,
        ),
        "samples_alike": samples_picture([[[0, 1], [2, 3]], [[0, 1], [2, 3]]], num_samples=1437),
        "samples_one": samples_picture([[[1436]]]),
        "buckets": buckets_picture(PARAMETERS, BUCKETS),
        "buckets_long": buckets_picture(
            [("blocks.0.attention.query_key_value.projection.weight", 2**31), ("b", 1)],
            [["blocks.0.attention.query_key_value.projection.weight"], ["b"]],
        ),
        "timeline": timeline_picture(
            [TRACK, [("compute", 0, 6, "forward"), *TRACK[2:4], ("waiting", 6, 7.5)], [], TRACK],
            "time in ms",
        ),
        "timeline_logical": timeline_picture(
            [[("compute", 0, 1), ("communication", 1, 1)], [("communication", 1, 2, "all_reduce")]],
            "events, in order",
        ),
        "timetable": timetable_picture(
            [
                [("F", "0", 0, 1), ("F", "1", 1, 2), ("B", "0", 4, 6), ("B", "1", 7, 9)],
                [("F", "0", 1, 2), ("B", "0", 2, 4), ("F", "1", 4, 5), ("B", "1", 5, 7)],
            ]
        ),
        "timetable_crowded": timetable_picture(
            [[("F", "a long label", 0, 1), ("B", "12.3", 1.5, 2), ("B", "", 2, 90)], []]
        ),
        "shards": shards_picture(
            sizes,
            {name: shards(4, rows) for name, rows in sizes.items()},
            {name: shards(2, rows) for name, rows in sizes.items()},
        ),
        "shards_awkward": shards_picture(
            {"copied": 10, "torn": 10, "none": 0},
            {"copied": [(0, 0, 10), (1, 0, 10)], "torn": [(0, 0, 3), (2, 6, 8)], "none": []},
            {"copied": shards(3, 10), "torn": shards(8, 10), "none": [(0, 0, 0)]},
        ),
        "shards_saved": shards_picture({"one": 1}, {"one": [(0, 0, 1)]}),
        "memory": memory_picture(
            [
                {
                    "parameters": 4 * 2**20,
                    "gradients": 4 * 2**20,
                    "optimizer": 8 * 2**20 // w,
                    "activations": 3 * 2**20,
                    "buffers": 2**18,
                    "other": 2**20 + 5,
                }
                for w in (1, 2, 4, 8)
            ]
        ),
        "memory_ways": memory_picture(
            {"DDP": {"parameters": 2**20, "gradients": 2**20}, "FSDP": {"parameters": 2**18}}
        ),
        "memory_none": memory_picture([{"parameters": 0}, {}]),
        "mesh": mesh_picture({"data": 2, "tensor": 2}, [f"half {r % 2}\nof all" for r in range(4)]),
        "mesh_of_three": mesh_picture({"data": 2, "pipeline": 3, "tensor": 4}),
        "mesh_line": mesh_picture({"data": 1}, ["all"]),
    }
