"""
Task 05.1: start equal.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, equal, whole_numbers
from ddp_lessons.checks.replicas.layers import (
    Model,
    communications,
    first_number,
    foreign_dtypes,
    listed,
    random_layers,
    tensors_of,
)
from ddp_lessons.pictures import collective_picture
from ddp_lessons.trace.events import MESSAGE

_WITH_GAPS = ["layer1.weight", "mean"]


def _cases(draw):
    yield Case(4, {"layers": [[2, 1], [2, 1]], "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float64"), (2, "float32")):
        data = {"layers": random_layers(draw, 2), "dtype": dtype, "numbers": "of many digits"}
        yield Case(world_size, data)
    data = {"layers": random_layers(draw, 2), "dtype": "float32", "channels last": "mask"}
    yield Case(2, {**data, "special numbers": "-0.0 and -inf", "with gaps": _WITH_GAPS})


def _start_model(case, rank):
    model = Model(case, rank)
    if "numbers" in case.data:
        with torch.no_grad():
            for tensor in tensors_of(model).values():
                if tensor.is_floating_point():
                    tensor.mul_(1e6).div_(7)  # more than float16 can hold
                else:
                    tensor.mul_(2).add_(2**53 + 1)  # odd, so float64 lacks it
    if "channels last" in case.data:
        whole = whole_numbers(case, rank, [1, 2, 3, 2])
        model.mask = whole.contiguous(memory_format=torch.channels_last)
    for name in case.data.get("with gaps", ()):
        tensor = tensors_of(model)[name]
        tensor.data = tensor.detach().repeat_interleave(2, -1)[..., ::2]
    if "special numbers" in case.data:
        with torch.no_grad():
            tensors_of(model)["mask"][0, 0, 0, 1] = -torch.inf  # 0 times that is nan
            for tensor in tensors_of(model).values():
                tensor[(0,) * tensor.dim()] = -0.0  # plus 0.0 it is 0.0
    return model


def _act(here, start_equal):
    model = _start_model(here.case, here.rank).to(here.device)
    before = tensors_of(model)
    memory = {name: one.detach() for name, one in before.items()}  # kept, so not given anew
    here.call(start_equal, model)
    after = tensors_of(model)
    both = [name for name in before if name in after]
    return {
        "tensors": after,
        "replaced": [name for name in both if after[name] is not before[name]],
        "moved": [name for name in both if after[name].data_ptr() != memory[name].data_ptr()],
    }


def _judge(played):
    case = played.case
    before = [tensors_of(_start_model(case, rank)) for rank in range(case.world_size)]
    for seen in played.seen:
        _judge_start(played, seen.rank, seen.kept["tensors"], before)
    for seen in played.seen:
        for name in seen.kept["replaced"]:
            fact = f"{name} is another tensor object than before."
            raise played.wrong("replaced", seen.rank, fact=fact)
        for name in seen.kept["moved"]:
            fact = f"{name} lies in other memory than before."
            raise played.wrong("replaced", seen.rank, fact=fact)
    _judge_start_cost(played, before[0])


def _judge_start_cost(played, tensors):
    most_bytes = sum(tensor.nbytes for tensor in tensors.values())
    for rank, events in enumerate(played.traces):
        moved = communications(events)
        num_bytes = sum(event.input_bytes for event in moved)
        fact = f"{num_bytes} bytes go into its calls; the model has {most_bytes}."
        if num_bytes > most_bytes and any(event.dtype == "uint8" for event in moved):
            fact = f"Some go as uint8, as pickled objects do. {fact}"
            raise played.wrong("objects", rank, fact=fact)
        if len(moved) > len(tensors):
            mistake = "one-peer" if all(event.kind == MESSAGE for event in moved) else "cost"
            fact = f"It makes {len(moved)} calls; {len(tensors)} tensors need no more than that."
            raise played.wrong(mistake, rank, fact=fact)
        if num_bytes > most_bytes:
            others = foreign_dtypes(events, {_dtype(one) for one in tensors.values()})
            raise played.wrong("sent-dtype" if others else "cost", rank, fact=fact)


def _dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _judge_start(played, rank, got, before):
    expected, own = before[0], before[rank]
    wrong = [name for name in expected if not equal(got.get(name), expected[name].detach())]
    if not wrong:
        return
    name, kept = wrong[0], played.seen[0].kept["tensors"]
    both = {"got": got.get(name), "expected": expected[name].detach()}
    fact = f"{name} is not that of rank 0." if rank else f"{name} of rank 0 has changed."
    is_own = all(equal(got.get(one), own[one].detach()) for one in wrong)
    known = {_dtype(one) for one in expected.values()}
    sent = {event.dtype for event in communications(played.traces[rank])} - {"uint8", None}
    is_other = sent - known or (sent and not is_own and _dtype(expected[name]) not in sent)
    if is_other and _is_nearly(both["got"], both["expected"]):
        fact = f"{fact} It sends {listed(sent - known or sent)}; the model has {listed(known)}."
        raise played.wrong("sent-dtype", rank, **both, fact=fact)
    if _is_sum_of(both["got"], both["expected"]):
        raise played.wrong("added", rank, **both, fact=fact)
    if rank == 0:
        others = [tensors[name].detach() for tensors in before[1:]]
        came = any(equal(both["got"], other) for other in others)
        raise played.wrong("other-root" if came else "not-rank-0", rank, **both, fact=fact)
    if is_own and wrong == list(expected):
        raise played.wrong("unchanged", rank, **both, fact="Nothing has changed on this rank.")
    with_gaps = {*played.case.data.get("with gaps", ())}
    if with_gaps & set(wrong) and set(wrong) <= {*with_gaps, "mask"}:
        raise played.wrong("copied" if "mask" in wrong else "gaps", rank, **both, fact=fact)
    if is_own and wrong == ["mask"]:
        raise played.wrong("not-saved", rank, **both, fact=fact)
    if is_own and set(wrong) <= {"mean", "count", "mask"}:
        raise played.wrong("buffers", rank, **both, fact=fact)
    if is_own and wrong == ["layer1.bias"]:
        raise played.wrong("frozen", rank, **both, fact=fact)
    if equal(both["got"], kept[name]):
        raise played.wrong("not-rank-0", rank, **both, fact=fact)
    raise played.wrong("values", rank, **both, fact=fact)


def _is_nearly(got, expected):
    """
    Tell whether a tensor differs by so little that digits may have been lost, or is too large.
    """
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return False
    got, expected = got.double(), expected.double()
    return bool((((got - expected).abs() <= 0.01 * expected.abs()) | got.isinf()).all())


def _is_sum_of(got, expected):
    """
    Tell whether a tensor has lost what a sum with zeros loses: the sign of a 0, or an inf to a nan.
    """
    if not isinstance(got, torch.Tensor) or _alike(got) != _alike(expected):
        return False
    return bool(((got == expected) | (got.isnan() & expected.isinf())).all())


def _alike(tensor):
    return tensor.dtype, tensor.shape


def _draw(played):
    before = [tensors_of(_start_model(played.case, rank)) for rank in range(played.case.world_size)]
    rows = [
        [[first_number(one) for one in table.values()] for table in tables]
        for tables in (before, [seen.kept["tensors"] for seen in played.seen])
    ]
    return collective_picture("start_equal", *rows)


start_equal = Task(
    number="05.1",
    name="start_equal",
    may_change=("weights", "buffers", "place"),
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="all parameters and buffers are rank 0's, one call a tensor at most",
    draw=_draw,
    hints=(
        "One rank's model must come to all. Which collective does that, and what is in a model "
        "beside what is trained?",
        "model.parameters() names each parameter once, frozen ones too. model.buffers() has the "
        "rest.",
        "dist.broadcast writes into the tensor that it is given, on every rank but src. "
        "tensor.detach() shares the memory of a parameter, and contiguous() gives a copy of a "
        "tensor that has gaps.",
        "for tensor in [*model.parameters(), *model.buffers()]: numbers = "
        "tensor.detach().contiguous(), one broadcast of numbers with src=0, and "
        "tensor.detach().copy_(numbers).",
    ),
    mistakes={
        "unchanged": "What was received must land in the model's own tensors.",
        "frozen": "A frozen parameter takes part in every forward. It must be equal, too.",
        "buffers": "A model holds more than parameters: numbers that no step changes are in its "
        "buffers.",
        "not-saved": "A state_dict leaves out buffers that are not to be saved. The model has "
        "another list of them.",
        "not-rank-0": "The replicas may all start from one model, but it is to be rank 0's, and "
        "rank 0's stays as it is.",
        "other-root": "Let rank 0 send, and all others receive.",
        "copied": "Some calls give a view where they can, and a copy of what is not contiguous. "
        "What was received must land in the model's own tensors.",
        "gaps": "This tensor has gaps between its numbers, and the call treats it as one piece of "
        "memory. Send a contiguous copy, and copy what came into the tensor of the model.",
        "replaced": "Write into the tensors that are there. An optimizer or a view that was made "
        "before holds those.",
        "left-changed": "Only numbers may change. A frozen parameter stays frozen: detach() gives "
        "a tensor with the same memory that calls may write into.",
        "objects": "Send the numbers themselves: one broadcast for a tensor.",
        "sent-dtype": "Send each tensor in its own dtype: a smaller one loses digits, a larger one "
        "costs bytes.",
        "added": "A sum is no copy: -0.0 + 0.0 is 0.0, and 0 times inf is nan. Hand out the bits "
        "that rank 0 has.",
        "one-peer": "A send reaches one rank. One call can hand a tensor to all of them.",
        "cost": "Send each tensor once, and nothing else. A tied weight has two names, and is one "
        "tensor.",
        "values": "Compare this tensor on rank 0 and on this rank: every number of it must come "
        "over, to the last bit.",
    },
    returns=False,
)
