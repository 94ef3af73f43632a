"""
Task 05.1: start equal.

On each rank: `_act`; in both: `_start_model`. In the kernel: the rest.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, equal, whole_numbers
from ddp_lessons.checks.replicas.layers import (
    Model,
    communications,
    first_number,
    listed,
    random_layers,
    tensors_of,
)
from ddp_lessons.pictures import collective_picture

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
                    tensor.mul_(2).add_(2**53 + 1)  # odd and above 2**53: float64 cannot hold it
    if "channels last" in case.data:
        whole = whole_numbers(case, rank, [1, 2, 3, 2])
        model.mask = whole.contiguous(memory_format=torch.channels_last)
    for name in case.data.get("with gaps", ()):
        tensor = tensors_of(model)[name]
        tensor.data = tensor.detach().repeat_interleave(2, -1)[..., ::2]
    if "special numbers" in case.data:
        with torch.no_grad():
            tensors_of(model)["mask"][0, 0, 0, 1] = -torch.inf  # 0 * -inf is nan
            for tensor in tensors_of(model).values():
                tensor[(0,) * tensor.dim()] = -0.0  # -0.0 + 0.0 is 0.0
    return model


def _act(context, start_equal):
    model = _start_model(context.case, context.rank).to(context.device)
    before = tensors_of(model)
    # These references keep the memory from being used again for other tensors.
    memory = {name: one.detach() for name, one in before.items()}
    context.call(start_equal, model)
    after = tensors_of(model)
    both = [name for name in before if name in after]
    return {
        "tensors": after,
        "replaced": [name for name in both if after[name] is not before[name]],
        "moved": [name for name in both if after[name].data_ptr() != memory[name].data_ptr()],
    }


def _tables(case):
    """
    Return, for each rank, {name: tensor} as it was before the call.
    """
    models = [_start_model(case, rank) for rank in range(case.world_size)]
    return [{name: t.detach() for name, t in tensors_of(model).items()} for model in models]


def _wrong_names(view):
    """
    Return the names of the tensors that differ from rank 0's in some bit.
    """
    got, expected = view.got, view.expected
    return [name for name in expected if not equal(got.get(name), expected[name])]


def _are_own(view, names):
    own = _tables(view.case)[view.rank]
    return bool(names) and all(equal(view.got.get(name), own[name]) for name in names)


def _changes_nothing(view):
    wrong = _wrong_names(view)
    return wrong == list(view.expected) and _are_own(view, wrong)


def _goes_from_elsewhere(view):
    wrong = _wrong_names(view)
    if not wrong:
        return ""
    if not view.rank:
        return f"{wrong[0]} of rank 0 has changed."
    first = view.case_result.seen[0].output["tensors"]
    if equal(view.got.get(wrong[0]), first.get(wrong[0])):
        return f"{wrong[0]} is the same on all ranks, and not that of rank 0."
    return ""


def _with_gaps(view):
    return {*view.case.data.get("with gaps", ())}


def _lacks_only(*names):
    """
    Return a `shows` that tells whether the wrong tensors are unchanged and all among `names`.
    """

    def shows(view):
        wrong = _wrong_names(view)
        if _are_own(view, wrong) and set(wrong) <= {*names}:
            return f"{wrong[0]} is as it was, and not that of rank 0."
        return ""

    return shows


def _writes_past_gaps(view):
    wrong = set(_wrong_names(view))
    return bool(wrong) and wrong <= _with_gaps(view)


def _fills_a_copy(view):
    wrong, with_gaps = set(_wrong_names(view)), _with_gaps(view)
    return bool(with_gaps) and "mask" in wrong and wrong <= {*with_gaps, "mask"}


def _dtypes(view):
    return {str(tensor.dtype).removeprefix("torch.") for tensor in view.expected.values()}


def _num_bytes(view):
    return sum(event.input_bytes for event in communications(view.events))


def _most_bytes(view):
    return sum(tensor.nbytes for tensor in view.expected.values())


def _sends_other_dtype(view):
    sent = {event.dtype for event in communications(view.events)} - {"uint8", None}
    others, wrong = sent - _dtypes(view), _wrong_names(view)
    if wrong and not others and not _are_own(view, wrong):
        others = sent if str(view.expected[wrong[0]].dtype)[6:] not in sent else set()
    is_near = wrong and all(_is_nearly(view.got.get(n), view.expected[n]) for n in wrong)
    costs_more = not wrong and _num_bytes(view) > _most_bytes(view)
    if not others or not (is_near or costs_more):
        return ""
    return f"It sends {listed(others)}; the model has {listed(_dtypes(view))}."


def _adds(view):
    wrong = _wrong_names(view)
    return bool(wrong) and _is_sum_of(view.got.get(wrong[0]), view.expected[wrong[0]])


def _is_elsewhere(view):
    for name in view.output["replaced"]:
        return f"{name} is another tensor object than before."
    for name in view.output["moved"]:
        return f"{name} has another place in memory than before."
    return ""


def _costs(view):
    num_calls, num_bytes = len(communications(view.events)), _num_bytes(view)
    if num_bytes > _most_bytes(view):
        return f"{num_bytes} bytes go into its calls; the model has {_most_bytes(view)}."
    if num_calls > len(view.expected):
        return f"It makes {num_calls} calls; {len(view.expected)} are enough for as many tensors."
    return ""


def _is_nearly(got, expected):
    """
    Tell whether each number is off by at most 1 %, as with lost digits, or is infinite.
    """
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return False
    got, expected = got.double(), expected.double()
    return bool((((got - expected).abs() <= 0.01 * expected.abs()) | got.isinf()).all())


def _is_sum_of(got, expected):
    """
    Tell whether a tensor differs only as a sum with zeros would: 0.0 for -0.0, and nan for inf.
    """
    if not isinstance(got, torch.Tensor) or _alike(got) != _alike(expected):
        return False
    return bool(((got == expected) | (got.isnan() & expected.isinf())).all())


def _alike(tensor):
    return tensor.dtype, tensor.shape


def _draw(case_result):
    case = case_result.case
    before = [tensors_of(_start_model(case, rank)) for rank in range(case.world_size)]
    rows = [
        [[first_number(one) for one in table.values()] for table in tables]
        for tables in (before, [seen.output["tensors"] for seen in case_result.seen])
    ]
    return collective_picture("start_equal", *rows)


start_equal = Task(
    number="05.1",
    changed_in="0.2.0",
    name="start_equal",
    may_mutate=("weights", "buffers", "place"),
    cases=_cases,
    act=_act,
    ok="all parameters and buffers are rank 0's, one call a tensor at most",
    draw=_draw,
    hints=(
        "All ranks need the model of one rank. Which collective does that, and what does a model "
        "have apart from trained parameters?",
        "model.parameters() yields each parameter once, also frozen ones. model.buffers() yields "
        "the rest.",
        "dist.broadcast writes into its tensor on every rank but src. tensor.detach() shares the "
        "memory of a parameter, and contiguous() returns a copy of a tensor that has gaps.",
        "for tensor in [*model.parameters(), *model.buffers()]: numbers = "
        "tensor.detach().contiguous(), one broadcast of numbers with src=0, and "
        "tensor.detach().copy_(numbers).",
    ),
    expected=Expected(
        lambda case, rank: _tables(case)[0], gave=lambda view: view.output["tensors"]
    ),
    mistakes=(
        Mistake(
            "sent-dtype",
            "Send each tensor in its own dtype: a smaller one loses digits, a larger one costs "
            "bytes.",
            shows=_sends_other_dtype,
        ),
        Mistake(
            "added",
            "A sum is not a copy: -0.0 + 0.0 is 0.0, and 0 times inf is nan. Send the bits of rank "
            "0.",
            "A tensor has lost the sign of a 0, or an inf, as in a sum with zeros.",
            shows=_adds,
        ),
        Mistake(
            "other-root",
            "Let rank 0 send, and all other ranks receive. All replicas must become equal to the "
            "model of rank 0, and rank 0's own model stays as it is.",
            shows=_goes_from_elsewhere,
        ),
        Mistake(
            "unchanged",
            "Write the received numbers into the model's own tensors.",
            "Nothing has changed on this rank.",
            shows=_changes_nothing,
        ),
        Mistake(
            "gaps",
            "This tensor has gaps between its numbers, and the call treats it as contiguous. Send "
            "a contiguous copy, and copy the result into the tensor of the model.",
            "A tensor with gaps is not that of rank 0.",
            shows=_writes_past_gaps,
        ),
        Mistake(
            "copied",
            "Some calls return a view of a contiguous tensor, and a copy of a tensor that is not "
            "contiguous. Write the received numbers into the model's own tensors.",
            "A tensor that is not contiguous is as it was.",
            shows=_fills_a_copy,
        ),
        Mistake(
            "buffers",
            "A model has parameters and buffers. Buffers hold numbers that no optimizer changes, "
            "and a state_dict leaves out the buffers that are not to be saved.",
            shows=_lacks_only("mean", "count", "mask"),
        ),
        Mistake(
            "frozen",
            "A frozen parameter takes part in every forward. So it must be equal on all ranks, "
            "too.",
            shows=_lacks_only("layer1.bias"),
        ),
        replace(
            VALUES,
            hint="Compare this tensor on rank 0 and on this rank: all numbers must be equal, to "
            "the last bit.",
            symptom="A tensor is not that of rank 0.",
        ),
        Mistake(
            "replaced",
            "Write into the tensors of the model. An optimizer or a view that was created earlier "
            "holds these tensors.",
            shows=_is_elsewhere,
        ),
        Mistake(
            "cost",
            "Send each tensor once, as a tensor and to all ranks in one call, and send nothing "
            "else. A tied weight has two names, and is one tensor.",
            shows=_costs,
        ),
        Mistake(
            "left-changed",
            "Change only numbers. A frozen parameter stays frozen: detach() returns a tensor that "
            "shares its memory, and calls may write into that tensor.",
        ),
    ),
    must_return=False,
)
