"""
Answers to task 11.3.
"""

from bank import Answer

from wrong_answers.speed.sources import altered

RING = "2 * (w - 1) * latency_s + 2 * (w - 1) / w * size / bandwidth"
STEP = "forward_s + max(now, free) + optimizer_s"
TALK = "sum(map(ring_s, sizes))"

ANSWERS = [
    altered("11.3", "goes round once too often", "rounds", ("2 * (w - 1)", "2 * w")),
    altered(
        "11.3",
        "begins with the last bucket",
        "order",
        ("zip(backward_s, sizes)", "zip(backward_s[::-1], sizes[::-1])"),
    ),
    altered(
        "11.3",
        "divides forward among the ranks",
        "divided",
        (STEP, STEP.replace("forward_s", "forward_s / w")),
    ),
    altered(
        "11.3",
        "adds up everything",
        "no-overlap",
        (STEP, f"forward_s + now + {TALK} + optimizer_s"),
    ),
    altered(
        "11.3",
        "starts to send with backward",
        "from-start",
        (STEP, f"forward_s + max(now, {TALK}) + optimizer_s"),
    ),
    altered(
        "11.3",
        "adds the last bucket",
        "last-only",
        (STEP, "forward_s + now + ring_s(sizes[-1]) + optimizer_s"),
    ),
    altered(
        "11.3",
        "sends all buckets at once",
        "no-queue",
        ("begin = max(now, free)", "begin = now"),
        ("free = begin + ring_s(size)", "free = max(free, begin + ring_s(size))"),
    ),
    altered(
        "11.3", "hides all communication", "compute-only", (STEP, "forward_s + now + optimizer_s")
    ),
    altered("11.3", "sends one message", "one-message", (RING, "latency_s + size / bandwidth")),
    altered(
        "11.3",
        "sends whole buckets round",
        "whole",
        (RING, "2 * (w - 1) * (latency_s + size / bandwidth)"),
    ),
    altered(
        "11.3",
        "goes round once",
        "one-way",
        (RING, "(w - 1) * latency_s + (w - 1) / w * size / bandwidth"),
    ),
    altered(
        "11.3", "forgets the latency", "no-latency", (RING, "2 * (w - 1) / w * size / bandwidth")
    ),
    altered("11.3", "forgets the bytes", "no-bytes", (RING, "2 * (w - 1) * latency_s")),
    altered("11.3", "forgets the optimizer", "no-optimizer", (STEP, "forward_s + max(now, free)")),
    altered("11.3", "returns milliseconds", "unit", (STEP, f"1000 * ({STEP})")),
    altered("11.3", "returns both ends", "no-number", (STEP, "(forward_s + now, free)")),
    altered(
        "11.3",
        "compares each bucket with the next part",
        "part-by-part",
        (
            STEP,
            "forward_s + now + optimizer_s + sum("
            "max(0, ring_s(s) - p) for s, p in zip(sizes, [*backward_s[1:], 0]))",
        ),
    ),
    altered("11.3", "forgets forward", "no-forward", (STEP, "max(now, free) + optimizer_s")),
    altered("11.3", "forgets forward and backward", "values", (STEP, "free - now")),
    altered(
        "11.3",
        "divides by the rounds",
        "raised",
        ("    now = free", "    per_round = 1 / (w - 1)\n    now = free"),
    ),
    altered(
        "11.3",
        "takes the lists apart",
        "input-changed",
        (
            "for part_s, size in zip(backward_s, sizes):",
            "while sizes:\n        part_s, size = backward_s.pop(0), sizes.pop(0)",
        ),
    ),
    Answer(
        "11.3",
        "asks the others",
        "forbidden",
        """\
import torch

def predict_step(w, forward_s, backward_s, sizes, optimizer_s, latency_s, bandwidth):
    torch.distributed.barrier()
    return forward_s
""",
    ),
    Answer(
        "11.3",
        "uses the package",
        None,
        """\
from ddp_lessons.costs import Link
from ddp_lessons.speed import predict_step_s

def predict_step(w, forward_s, backward_s, sizes, optimizer_s, latency_s, bandwidth):
    link = Link(latency_s, bandwidth)
    return predict_step_s(w, forward_s, backward_s, sizes, link, optimizer_s)
""",
    ),
    Answer(
        "11.3",
        "goes back from the end",
        None,
        """\
import torch

def predict_step(w, forward_s, backward_s, sizes, optimizer_s, latency_s, bandwidth):
    # It ends with a chain: parts up to some k, then buckets k to the last. The longest one counts.
    hops = 2 * (w - 1)
    talk = [hops * (latency_s + size / w / bandwidth) for size in sizes]
    chains = [sum(backward_s[: k + 1]) + sum(talk[k:]) for k in range(len(sizes))]
    return torch.tensor(forward_s + optimizer_s + max(chains + [sum(backward_s)]))
""",
    ),
    altered("11.3", "adds 5 % for what it does not know", None, (STEP, f"1.05 * ({STEP})")),
]
