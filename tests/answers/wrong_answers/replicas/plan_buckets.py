"""
Answers to task 05.3.
"""

from bank import Answer, changed

from wrong_answers.replicas.sources import PLAN, altered

RETURN = "    return buckets"


def _stored(what):
    """
    Return an answer to 05.3 that takes the plan of rank 0 from the store.
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
    Answer("05.3", "counts numbers", "numbers", changed(PLAN, (" * parameter.element_size()", ""))),
    Answer("05.3", "closes a bucket above its cap", "one-late", changed(PLAN, (">= cap", "> cap"))),
    Answer(
        "05.3",
        "closes a bucket before it is above its cap",
        "under-cap",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    buckets, bucket, num_bytes = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        own = parameter.numel() * parameter.element_size()
        cap = cap_bytes if buckets else first_cap_bytes
        if bucket and num_bytes + own > cap:
            buckets.append(bucket)
            bucket, num_bytes = [], 0
        bucket.append(name)
        num_bytes += own
    return [*buckets, bucket]
""",
    ),
    Answer(
        "05.3",
        "forgets the last open bucket",
        "lost",
        changed(PLAN, ("    if bucket:\n        buckets.append(bucket)\n", "")),
    ),
    Answer(
        "05.3",
        "always adds the open bucket",
        "empty",
        changed(
            PLAN,
            ("    if bucket:\n        buckets.append(bucket)\n", "    buckets.append(bucket)\n"),
        ),
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
        "gives all buckets the cap of the first",
        "first-cap",
        changed(PLAN, ("cap = cap_bytes if buckets else first_cap_bytes", "cap = first_cap_bytes")),
    ),
    Answer(
        "05.3",
        "plans a message for each parameter",
        "each-alone",
        changed(PLAN, ("if num_bytes >= cap:", "if bucket:")),
    ),
    Answer(
        "05.3",
        "puts names into each bucket in a random order",
        "ranks-differ",
        changed(
            PLAN,
            ("def plan", "import random\n\ndef plan"),
            ("    return buckets", "    return [random.sample(b, len(b)) for b in buckets]"),
        ),
    ),
    Answer(
        "05.3",
        "sorts parameters by size",
        "values",
        changed(
            PLAN,
            (
                "reversed(list(model.named_parameters()))",
                "sorted(model.named_parameters(), key=lambda pair: -pair[1].numel())",
            ),
        ),
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
        "takes the smaller cap for the first bucket",
        "first-cap",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held = [], [], 0
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.numel() * parameter.element_size()
        cap = cap_bytes if plan else min(first_cap_bytes, cap_bytes)
        if held >= cap:
            plan.append(bucket)
            bucket, held = [], 0
    if bucket:
        plan.append(bucket)
    return plan
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
    Answer(
        "05.3",
        "counts the bytes of a parameter's storage",
        "storage",
        """\
def plan_buckets(model, cap_bytes, first_cap_bytes):
    plan, bucket, held, cap = [], [], 0, first_cap_bytes
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad:
            continue
        bucket.append(name)
        held += parameter.untyped_storage().nbytes()
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
    _stored("leaves it there again, where it lies already"),
    altered(
        "05.3",
        "keeps the plan on the model",
        "kept",
        (RETURN, "    model.plan = getattr(model, 'plan', buckets)\n    return model.plan"),
    ),
    altered(
        "05.3", "thaws the model", "left-changed", (RETURN, "    model.requires_grad_()\n" + RETURN)
    ),
    altered(
        "05.3", "plans a bucket of nothing", "empty", ("if bucket:", "if bucket or not buckets:")
    ),
    altered("05.3", "takes 4 bytes a number", "numbers", ("parameter.element_size()", "4")),
    altered("05.3", "counts rows", "rows", ("parameter.numel()", "len(parameter)")),
    altered(
        "05.3",
        "adds to the list of the call before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, buckets=[]):"),
        ("buckets, bucket, num_bytes = [], [], 0", "bucket, num_bytes = [], 0"),
    ),
    altered(
        "05.3",
        "goes on with the open bucket of the call before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, bucket=[]):"),
        ("buckets, bucket, num_bytes = [], [], 0", "buckets, num_bytes = [], 0"),
    ),
    altered(
        "05.3",
        "leaves out what it has put into a bucket before",
        "kept",
        ("first_cap_bytes):", "first_cap_bytes, done=[]):"),
        ("not parameter.requires_grad:", "not parameter.requires_grad or name in done:"),
        (
            "        bucket.append(name)\n",
            "        bucket.append(name)\n        done.append(name)\n",
        ),
    ),
    altered(
        "05.3",
        "empties the list of the bucket that it has closed",
        "repeated",
        ("bucket, num_bytes = [], 0\n    if", "bucket.clear()\n            num_bytes = 0\n    if"),
    ),
    altered(
        "05.3",
        "gives the second bucket the cap of the first, too",
        "first-cap",
        ("cap_bytes if buckets else", "cap_bytes if len(buckets) > 1 else"),
    ),
    altered(
        "05.3",
        "lets the next bucket make up for what is above the cap",
        "not-reset",
        ("bucket, num_bytes = [], 0\n    if", "bucket, num_bytes = [], cap - num_bytes\n    if"),
    ),
    altered(
        "05.3",
        "closes all but the first bucket above its cap",
        "one-late",
        (">= cap", "> cap - (not buckets)"),
    ),
    altered(
        "05.3",
        "closes the first bucket above its cap",
        "one-late",
        (">= cap", "> cap - len(buckets)"),
    ),
    altered(
        "05.3",
        "takes what is above the cap along to the next bucket",
        "not-reset",
        ("bucket, num_bytes = [], 0\n    if", "bucket, num_bytes = [], num_bytes - cap\n    if"),
    ),
    altered(
        "05.3",
        "asks whether there is a gradient",
        "by-grad",
        ("not parameter.requires_grad", "parameter.grad is None"),
    ),
    altered("05.3", "turns the plan round", "backwards", (RETURN, RETURN + "[::-1]")),
    altered(
        "05.3",
        "counts the bytes of frozen parameters",
        "frozen",
        ("            continue", "            num_bytes += parameter.nbytes\n            continue"),
    ),
    altered(
        "05.3",
        "swaps the caps",
        "first-cap",
        ("cap_bytes if buckets else first_cap_bytes", "first_cap_bytes if buckets else cap_bytes"),
    ),
    altered("05.3", "returns parameters", "no-list", ("append(name)", "append(parameter)")),
    altered("05.3", "returns lists of lists", "no-list", ("append(name)", "append([name])")),
    altered(
        "05.3",
        "remembers plans by model and caps, whatever is frozen since",
        "kept",
        ("def plan", "import functools\n\n@functools.lru_cache\ndef plan"),
    ),
    altered(
        "05.3",
        "unusual: takes a cap of 0 for none, and no cap is 0",
        None,
        ("first_cap_bytes\n        if", "(first_cap_bytes or cap_bytes)\n        if"),
    ),
    altered(
        "05.3",
        "leaves out what has no numbers",
        "no-numbers",
        (
            "if not parameter.requires_grad:",
            "if not (parameter.requires_grad and parameter.numel()):",
        ),
    ),
    altered(
        "05.3",
        "tells parameters apart by their address",
        "no-numbers",
        ("    for name", "    seen = set()\n    for name"),
        (
            "            continue",
            "            continue\n        if parameter.data_ptr() in seen:\n            continue\n"
            "        seen.add(parameter.data_ptr())",
        ),
    ),
    altered(
        "05.3",
        "knows by its name which parameter is frozen",
        "kept",
        ("if not parameter.requires_grad:", "if name == 'layer1.bias':"),
    ),
]
