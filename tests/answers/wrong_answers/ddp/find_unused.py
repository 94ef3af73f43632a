"""
Answers to task 06.2.
"""

from bank import Answer, changed

from wrong_answers.ddp.sources import IMPORTS


def _unused(body):
    return IMPORTS + "def find_unused(model, loss):\n" + body


_REACHED = """\
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
"""

_FLAGS = "    counts = torch.tensor([g is not None for g in gradients], dtype=torch.int64)\n"

_LISTS = """\
    world_size, counts = dist.get_world_size(), counts.tolist()
    freeze = [n for n, count in zip(trained, counts) if count == 0]
    find = [n for n, count in zip(trained, counts) if 0 < count < world_size]
    return freeze, find
"""

_ADD = "    dist.all_reduce(counts)\n"

_BACKWARD = """\
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
"""

_FINDS = _REACHED + _FLAGS + _ADD + _LISTS


def _finds(old, new):
    return _unused(changed(_FINDS, (old, new)))


def _by_layer(test):
    return _finds(
        _FLAGS,
        f"""\
    parts = {{n: n.partition(".")[0] for n in trained}}
    heads = {{parts[n] for n, g in zip(trained, gradients) if {test}}}
    counts = torch.tensor([parts[n] in heads for n in trained], dtype=torch.int64)
""",
    )


_NAMED = "    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}\n"
_OF_SET = """\
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    trained = {n: named[n] for n in set(named)}
"""
_SORTED = changed(
    _LISTS,
    (
        "return freeze, find",
        "return [n for n in named if n in freeze], [n for n in named if n in find]",
    ),
)

ANSWERS = [
    Answer(
        "06.2",
        "adds up in the order of a set of names",
        "own-order",
        _unused(changed(_REACHED, (_NAMED, _OF_SET)) + _FLAGS + _ADD + _SORTED),
    ),
    Answer(
        "06.2",
        "adds up in the order of a sorted set of names",
        None,
        _unused(
            changed(_REACHED, (_NAMED, changed(_OF_SET, ("set(named)", "sorted(set(named))"))))
            + _FLAGS
            + _ADD
            + _SORTED
        ),
    ),
    Answer("06.2", "asks its own rank only", "one-rank", _unused(_REACHED + _FLAGS + _LISTS)),
    Answer(
        "06.2",
        "looks into .grad, where an old gradient is",
        "stale",
        _unused(
            _BACKWARD
            + "    loss.backward()\n"
            + _FLAGS.replace("gradients", "[p.grad for p in trained.values()]")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "empties .grad for its own backward",
        "gradients",
        _unused(
            _BACKWARD
            + "    model.zero_grad()\n    loss.backward()\n"
            + _FLAGS.replace("gradients", "[p.grad for p in trained.values()]")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "takes a gradient of zeros for none",
        "zero",
        _unused(
            _REACHED
            + _FLAGS.replace("g is not None", "g is not None and g.any().item()")
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "lists frozen parameters too",
        "frozen",
        _unused(
            """\
    trained = dict(model.named_parameters())
    gradients = [
        torch.autograd.grad(loss, p, allow_unused=True, retain_graph=True)[0]
        if p.requires_grad else None
        for p in trained.values()
    ]
"""
            + _FLAGS
            + _ADD
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "asks for gradients of frozen parameters",
        "raised",
        _unused((_REACHED + _FLAGS + _ADD + _LISTS).replace(" if p.requires_grad", "")),
    ),
    Answer(
        "06.2",
        "returns the lists the other way round",
        "swapped",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("freeze, find\n", "find, freeze\n")),
    ),
    Answer(
        "06.2",
        "freezes what some rank does not reach",
        "too-much",
        _unused(
            _REACHED
            + _FLAGS
            + _ADD
            + """\
    freeze = [n for n, count in zip(trained, counts) if count < dist.get_world_size()]
    return freeze, []
"""
        ),
    ),
    Answer(
        "06.2",
        "sorts names",
        "order",
        _unused(
            _REACHED
            + _FLAGS
            + _ADD
            + _LISTS.replace("freeze, find\n", "sorted(freeze), sorted(find)\n")
        ),
    ),
    Answer(
        "06.2",
        "returns names of modules",
        "other-names",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("[n for", "[n.partition('.')[0] for")),
    ),
    Answer(
        "06.2",
        "returns one list",
        "no-lists",
        _unused(_REACHED + _FLAGS + _ADD + _LISTS.replace("freeze, find\n", "freeze + find\n")),
    ),
    Answer(
        "06.2",
        "sends lists of names",
        "objects",
        _unused(
            _REACHED
            + """\
    missing = [n for n, g in zip(trained, gradients) if g is None]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, missing)
    counts = [sum(n in one for one in everyone) for n in trained]
    freeze = [n for n, count in zip(trained, counts) if count == len(everyone)]
    find = [n for n, count in zip(trained, counts) if 0 < count < len(everyone)]
    return freeze, find
"""
        ),
    ),
    Answer(
        "06.2",
        "sends a flag at a time",
        "cost",
        _unused(
            _REACHED + _FLAGS + "    for flag in counts:\n        dist.all_reduce(flag)\n" + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "talks only where something is missing",
        "deadlock",
        _unused(
            _REACHED
            + _FLAGS
            + """\
    if "right.weight" in trained and not counts[list(trained).index("right.weight")]:
        dist.all_reduce(counts)
"""
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "walks the graph and gathers flags of a byte",
        None,
        _unused(
            """\
    waiting, seen, reached = [loss.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                reached.add(id(node.variable))
            waiting += [following for following, _ in node.next_functions]
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    flags = torch.tensor([id(p) in reached for p in trained.values()], dtype=torch.int8)
    everyone = [torch.empty_like(flags) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flags)
    counts = torch.stack(everyone).sum(0)
"""
            + _LISTS
        ),
    ),
    Answer(
        "06.2",
        "puts .grad aside, and back",
        None,
        _unused(
            _BACKWARD
            + """\
    kept = [p.grad for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    counts = torch.tensor([float(p.grad is not None) for p in trained.values()])
    for p, old in zip(model.parameters(), kept):
        p.grad = old
"""
            + _ADD
            + _LISTS
        ),
    ),
    Answer("06.2", "decides by layer", "by-layer", _by_layer("g is not None")),
    Answer(
        "06.2",
        "takes the names of a state dict",
        "twice-named",
        _finds("model.named_parameters()", "model.state_dict(keep_vars=True).items()"),
    ),
    Answer(
        "06.2",
        "finds what all ranks but one reach nowhere",
        "too-few",
        _finds("count < world_size", "count < world_size - 1"),
    ),
    Answer(
        "06.2",
        "finds what no rank reaches, too",
        "both-lists",
        _finds("0 < count < world_size", "count < world_size"),
    ),
    Answer(
        "06.2",
        "knows of 4 ranks",
        "fixed-size",
        _finds("dist.get_world_size(), counts", "4, counts"),
    ),
    Answer(
        "06.2",
        "counts on from call to call",
        "kept",
        "num_reached = {}\n\n\n"
        + _finds(
            "counts.tolist()\n",
            "counts.tolist()\n"
            "    for n, count in zip(trained, counts):\n"
            "        num_reached[n] = num_reached.get(n, 0) + count\n"
            "    counts = [num_reached[n] for n in trained]\n",
        ),
    ),
    Answer("06.2", "adds up bools", "any-rank", _finds("int64", "bool")),
    Answer(
        "06.2",
        "sends 16 bytes a flag",
        "bytes",
        _unused(
            _FINDS.replace("int64", "complex128").replace("counts.tolist", "counts.real.tolist")
        ),
    ),
    Answer(
        "06.2",
        "freezes what it finds",
        "left-changed",
        _finds(
            "    return",
            "    [model.get_parameter(n).requires_grad_(False) for n in freeze]\n    return",
        ),
    ),
    Answer(
        "06.2",
        "sends a flag for frozen parameters, too, and returns tuples",
        None,
        _unused(
            _REACHED
            + """\
    found = dict(zip(trained, gradients))
    counts = torch.tensor([found.get(n) is not None for n, _ in model.named_parameters()]).long()
    dist.all_reduce(counts)
    counts = dict(zip(dict(model.named_parameters()), counts.tolist()))
    find = (n for n in trained if 0 < counts[n] < dist.get_world_size())
    return tuple(n for n in trained if counts[n] == 0), tuple(find)
"""
        ),
    ),
    Answer(
        "06.2",
        "packs all counts into one number",
        "no-room",
        _unused(
            _REACHED
            + """\
    packed = sum((g is not None) << 4 * place for place, g in enumerate(gradients)) % 2**63
    packed = torch.tensor([packed])
    dist.all_reduce(packed)
    counts = torch.tensor([packed.item() >> 4 * place & 15 for place in range(len(trained))])
"""
            + _LISTS
        ),
    ),
]
