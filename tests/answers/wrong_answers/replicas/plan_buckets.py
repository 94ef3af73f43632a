"""
Answers to task 05.3.
"""

from bank import Answer, changed

from wrong_answers.replicas.sources import PLAN, altered

RETURN = "    return buckets"


def _stored(what):
    """
    Return an answer to task 05.3 that reads rank 0's plan from the store.
    """
    return altered(
        "05.3",
        what,
        "store",
        ("def plan", "import json, torch.distributed as dist\n\ndef plan"),
        (
            RETURN,
            "    store = dist.distributed_c10d._get_default_store()\n"
            "    if dist.get_rank() == 0:\n        store.set('plan', json.dumps(buckets))\n"
            "    return json.loads(store.get('plan'))",
        ),
    )


ANSWERS = [
    # ---- 05.3 ----
    Answer(
        "05.3",
        "returns a dictionary",
        "no-list",
        changed(PLAN, ("    return buckets", "    return dict(enumerate(buckets))")),
    ),
    Answer(
        "05.3",
        "goes from the first parameter to the last",
        "order",
        changed(PLAN, ("reversed(list(model.named_parameters()))", "model.named_parameters()")),
    ),
    Answer(
        "05.3",
        "plans frozen parameters",
        "frozen",
        changed(PLAN, ("        if not parameter.requires_grad:\n            continue\n", "")),
    ),
    Answer(
        "05.3",
        "plans a tied weight under both names",
        "tied",
        changed(PLAN, ("named_parameters()", "named_parameters(remove_duplicate=False)")),
    ),
    Answer("05.3", "counts numbers", "bytes", changed(PLAN, (" * parameter.element_size()", ""))),
    Answer("05.3", "closes a bucket above its cap", "closing", changed(PLAN, (">= cap", "> cap"))),
    Answer(
        "05.3",
        "forgets the last open bucket",
        "end",
        changed(PLAN, ("    if bucket:\n        buckets.append(bucket)\n", "")),
    ),
    Answer(
        "05.3",
        "counts on in the next bucket",
        "not-reset",
        changed(PLAN, ("bucket, num_bytes = [], 0\n    if", "bucket = []\n    if")),
    ),
    Answer(
        "05.3",
        "gives the first bucket the cap of all",
        "first-cap",
        changed(PLAN, ("cap = cap_bytes if buckets else first_cap_bytes", "cap = cap_bytes")),
    ),
    Answer(
        "05.3",
        "plans a message for each parameter",
        "values",
        changed(PLAN, ("if num_bytes >= cap:", "if bucket:")),
    ),
    Answer(
        "05.3",
        "lets rank 0 plan for all",
        "forbidden",
        changed(
            PLAN,
            ("def plan", "import torch.distributed as dist\n\ndef plan"),
            (
                "    return buckets",
                "    plans = [buckets]\n    dist.broadcast_object_list(plans, src=0)\n"
                "    return plans[0]",
            ),
        ),
    ),
    Answer(
        "05.3",
        "unusual: closes what is full when the next parameter comes",
        None,
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    cap, plan = first_cap_bytes, [()]
    num_bytes = 0
    for name, parameter in list(model.named_parameters())[::-1]:
        if parameter.grad is None and not parameter.requires_grad:
            continue
        if num_bytes >= cap:
            cap, num_bytes = cap_bytes, 0
            plan.append(())
        plan[-1] += (name,)
        num_bytes += parameter.nbytes
    return [bucket for bucket in plan if bucket]
""",
    ),
    Answer(
        "05.3",
        "remembers a plan for each model and caps",
        "kept",
        """\
from functools import cache

@cache
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held, cap = [], [], 0, first_cap_bytes
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.numel() * parameter.element_size()
        if held >= cap:
            plan.append(bucket)
            bucket, held, cap = [], 0, cap_bytes
    if bucket:
        plan.append(bucket)
    return plan
""",
    ),
    # ---- 05.3 ----
    altered(
        "05.3",
        "makes each bucket a set first",
        "inside",
        (RETURN, RETURN[:-7] + "[list(set(b)) for b in buckets]"),
    ),
    _stored("leaves the plan of rank 0 in the store"),
    altered(
        "05.3",
        "asks whether there is a gradient",
        "by-grad",
        ("not parameter.requires_grad", "parameter.grad is None"),
    ),
    altered(
        "05.3",
        "unusual: takes a cap of 0 for none, and no cap is 0",
        None,
        ("first_cap_bytes\n        if", "(first_cap_bytes or cap_bytes)\n        if"),
    ),
]
