"""
Task 11.3: predict a step.

On each rank: `_act`; in both: `_arguments`. In the kernel: the rest.
"""

from itertools import accumulate
from random import Random

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.speed.runs import number_of
from ddp_lessons.costs import Link, overlapped_finish_s
from ddp_lessons.pictures import timeline_plot
from ddp_lessons.speed import PlayedStep, in_ms, on_one_clock, predict_step_s

LIMIT = 0.15
NUM_STEPS = 2
_SAME = 1e-5  # a number this near to a mistake's number comes from that mistake

_LATENCY_S, _BANDWIDTH = 0.001, 10e6
_KINDS = {
    # parts of backward in ms, and for each part the ms that its bucket's bytes take on 4 ranks
    "short buckets": ([24, 24, 24], [9, 9, 9]),
    "long buckets": ([8, 8, 8], [33, 18, 12]),
    "many small ones": ([6, 6, 6, 6], [1, 1, 1, 1]),
    "a long first one": ([10, 10], [48, 9]),
    "a long one, then time": ([8, 8, 40], [45, 6, 9]),
    "one bucket": ([30], [45]),
}


def _cases(draw):
    yield Case(4, {"buckets": "long buckets"}, seed=0)
    yield Case(4, {"buckets": "short buckets"})
    yield Case(3, {"buckets": "a long first one"})
    yield Case(4, {"buckets": "many small ones"})
    yield Case(3, {"buckets": "a long one, then time"})
    yield Case(2, {"buckets": "one bucket"})
    yield Case(1, {"buckets": draw.choice(list(_KINDS))})


def _arguments(case):
    """
    Return (forward_s, backward_s, sizes, optimizer_s, link). `sizes` are the bytes of buckets.
    """
    draw = Random(case.seed)
    parts_ms, buckets_ms = _KINDS[case["buckets"]]
    backward_s = [part_ms / 1e3 * draw.uniform(0.95, 1.05) for part_ms in parts_ms]
    latency_s = _LATENCY_S * (4 if "many" in case["buckets"] else 1)
    link = Link(latency_s, _BANDWIDTH * draw.uniform(0.95, 1.05))
    # 48 bytes are 12 numbers of float32, which 1, 2, 3 or 4 ranks can divide evenly.
    sizes = [48 * round(ms / 1e3 * _BANDWIDTH / 1.5 / 48) for ms in buckets_ms]
    # With one bucket forward takes longer, which finds an answer that divides it by the ranks.
    forward_s = draw.uniform(0.024, 0.026) * (2.5 if case["buckets"] == "one bucket" else 1)
    return forward_s, backward_s, sizes, draw.uniform(0.024, 0.026), link


def _act(context, predict_step):
    forward_s, backward_s, sizes, optimizer_s, link = _arguments(context.case)
    told = (list(backward_s), list(sizes), optimizer_s, link.latency_s, link.bandwidth_bytes_per_s)
    context.call(predict_step, context.world_size, forward_s, *told)
    step = PlayedStep(forward_s, backward_s, sizes, link, optimizer_s)
    return [step.run() for _ in range(NUM_STEPS)]


def measured_s(case_result):
    """
    Return the seconds of the fastest step. A step takes as long as on its slowest rank.

    The times of a span are by its own rank's clock. So the length of a step on a rank is the time
    from its first to its last moment on that rank.
    """
    return min(
        max(_length_s(seen.output[number]) for seen in case_result.seen)
        for number in range(NUM_STEPS)
    )


def _length_s(spans):
    return max(span[2] for span in spans) - min(span[1] for span in spans)


def _judge(case_result):
    w = case_result.case.world_size
    forward_s, backward_s, sizes, optimizer_s, link = _arguments(case_result.case)
    right_s = predict_step_s(w, forward_s, backward_s, sizes, link, optimizer_s)
    # Sleep never ends early, so no step is shorter than the model says. A busy machine makes it
    # longer; an answer that follows the model must pass all the same.
    shortest_s, longest_s = sorted((right_s, measured_s(case_result)))
    for seen in case_result.seen:
        got_s = number_of(seen.calls[-1].result)
        if got_s is None:
            fact = "It must return one number."
            raise case_result.wrong("no-number", seen.rank, got=seen.calls[-1].result, fact=fact)
        mistake = _made_by(case_result.case, got_s, right_s)
        is_near = (1 - LIMIT) * shortest_s <= got_s <= (1 + LIMIT) * longest_s
        if is_near and mistake is None:
            continue
        fact = (
            f"It says {1e3 * got_s:.1f} ms. The faster of {NUM_STEPS} steps took "
            f"{1e3 * longest_s:.1f} ms; without any delay of the machine, {1e3 * shortest_s:.1f}."
        )
        raise case_result.wrong(mistake or "values", seen.rank, fact=fact)


def _made_by(case, got_s, right_s):
    """
    Return the mistake that gives this number, or None.

    A mistake counts only if it changes the number of this case by more than `LIMIT`.
    """
    for name, wrong_s in _recipes(case):
        is_other = abs(wrong_s - right_s) > LIMIT * right_s
        if is_other and abs(got_s - wrong_s) <= _SAME * wrong_s:
            return name
    return None


def _recipes(case):
    w = case.world_size
    forward_s, backward_s, sizes, optimizer_s, link = _arguments(case)
    latency_s, per_byte = link.latency_s, 1 / link.bandwidth_bytes_per_s
    right_s = predict_step_s(w, forward_s, backward_s, sizes, link, optimizer_s)
    rounds, share = 2 * (w - 1), 2 * (w - 1) / w

    def step(cost, parts=backward_s, sizes=sizes):
        finish_s = overlapped_finish_s(list(accumulate(parts)), [cost(size) for size in sizes])
        return forward_s + max(sum(parts), finish_s) + optimizer_s

    def ring(size):
        return rounds * latency_s + share * size * per_byte

    own_s = forward_s + sum(backward_s) + optimizer_s
    talk_s, ready_s = sum(map(ring, sizes)), list(accumulate(backward_s))
    at_once_s = max(ready + ring(size) for ready, size in zip(ready_s, sizes, strict=True))
    yield "unit", 1e3 * right_s
    yield "unit", step(lambda size: ring(8 * size))
    yield "compute-only", own_s
    yield "no-overlap", own_s + talk_s
    yield "no-overlap", forward_s + sum(backward_s) + ring(sum(sizes)) + optimizer_s
    yield "from-start", forward_s + max(sum(backward_s), talk_s) + optimizer_s
    yield "from-start", forward_s + max(sum(backward_s), ring(sum(sizes))) + optimizer_s
    yield "last-only", own_s + ring(sizes[-1])
    yield "no-queue", forward_s + max(sum(backward_s), at_once_s) + optimizer_s
    beside = [*backward_s[1:], 0.0]
    shows_s = sum(max(0.0, ring(size) - part) for size, part in zip(sizes, beside, strict=True))
    yield "part-by-part", own_s + shows_s
    yield "divided", own_s / w + talk_s
    yield "divided", (right_s - talk_s) / w + talk_s
    yield "divided", right_s / w
    yield "divided", step(ring, [part / w for part in backward_s])
    yield "divided", right_s - forward_s + forward_s / w
    yield "rounds", step(lambda size: 2 * (w * latency_s + size * per_byte))
    for parts in (backward_s, backward_s[::-1]):
        yield "order", step(ring, parts, sizes[::-1])
    yield "one-message", step(lambda size: latency_s + size * per_byte)
    yield "whole", step(lambda size: rounds * (latency_s + size * per_byte))
    yield "whole", step(lambda size: (w - 1) * (latency_s + size * per_byte))
    yield "one-way", step(lambda size: (w - 1) * latency_s + share / 2 * size * per_byte)
    yield "no-latency", step(lambda size: share * size * per_byte)
    yield "no-latency", step(lambda size: latency_s + share * size * per_byte)
    yield "no-bytes", step(lambda size: rounds * latency_s)
    yield "no-optimizer", right_s - optimizer_s
    yield "no-forward", right_s - forward_s


def _draw(case_result):
    tracks = on_one_clock([seen.output[0] for seen in case_result.seen])
    return timeline_plot(in_ms(tracks), "time in ms: a step as it was measured")


predict_step = Task(
    number="11.3",
    name="predict_step",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="within 15 % of what 1 to 4 ranks took",
    draw=_draw,
    hints=(
        "Draw two lines: one for what the rank computes, one for its link. A bucket enters the "
        "link when its part of backward is through and the link is free.",
        "A ring of w ranks takes 2 (w - 1) messages one after the other, each of a w-th part of "
        "the bucket.",
        "Go through the buckets with two clocks: one says when this part of backward is through, "
        "one when the link is free. The later of the two is when the bucket begins.",
        "ready += part; free = max(ready, free) + 2 * (world_size - 1) * (latency_s + size / "
        "world_size / bandwidth)",
    ),
    mistakes={
        "no-number": "Return one number: the seconds of the step.",
        "unit": "Return seconds, and go by bytes: no milliseconds, no bits.",
        "compute-only": "What is computed is there. The link may need longer than backward: then "
        "the optimizer waits for the last bucket.",
        "no-overlap": "Buckets are sent while backward goes on: only what is not through by its "
        "end makes the step longer.",
        "from-start": "A bucket cannot be sent before its part of backward is through: the link is "
        "idle until then.",
        "last-only": "It is not the last bucket alone that shows, if those before it still occupy "
        "the link.",
        "no-queue": "One bucket is under way at a time: the next one waits until the link is free.",
        "part-by-part": "Backward does not stop for a bucket: one that is not through by the end "
        "of the next part goes on beside later ones.",
        "divided": "Each rank computes its own batch: compute does not become shorter with more "
        "ranks.",
        "one-message": "An all-reduce is more than one message: each bucket goes round the ring, "
        "in parts.",
        "whole": "A message of a ring holds one part of the bucket: as many parts as there are "
        "ranks.",
        "one-way": "The parts go round twice: once to be added up, once to be copied.",
        "rounds": "A ring of w ranks is through after w - 1 messages, and as many once more.",
        "order": "Part k makes bucket k, and buckets go in the order in which they become ready: "
        "both lists begin with the first.",
        "no-latency": "Every message of every bucket has a latency: with small buckets it is most "
        "of the time.",
        "no-bytes": "The bytes of a bucket take time, too.",
        "no-optimizer": "The step ends with the optimizer, which begins when backward and the last "
        "bucket are through.",
        "no-forward": "Forward comes first: until it is through, there is no gradient to send.",
        "values": "Go through one case with a pencil: when is each bucket ready, when is the link "
        "free, when is the bucket through?",
        "raised": "The line that is named is yours. One rank alone sends nothing.",
        "input-changed": "Leave the lists as they are: pop takes a part out of your caller's.",
        "forbidden": "Foretell it: the check measures.",
    },
    allowed=(),
)
