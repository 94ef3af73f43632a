"""
The data and models of the lessons are the same everywhere, and can be learned.
"""

import re
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from ddp_lessons.errors import BadInput
from ddp_lessons.workloads import (
    accuracy,
    batch_norm_model,
    branched_model,
    digits_batch,
    digits_model,
    half_squares,
    language_model,
    linear_toy,
    load_digits,
    load_text,
    next_character_loss,
    rank_generator,
    text_batch,
    tied_model,
    train,
)

MODELS = {
    "small": (digits_model, 4_810),
    "medium": (lambda seed: digits_model(seed, "medium"), 85_002),
    "large": (lambda seed: digits_model(seed, "large"), 1_126_410),
    "BatchNorm": (batch_norm_model, 4_938),
    "tied": (tied_model, 4_874),
    "branched": (branched_model, 5_460),
    "language": (lambda seed: language_model(63, seed), 15_808),
    "linear": (lambda seed: linear_toy().model(seed), 4),
}


def test_load_digits_splits_without_overlap_or_loss():
    """
    A held-out sample that was trained on would make every accuracy of the course a lie.
    """
    digits = load_digits()
    assert digits.train_images.shape == (1437, 64)
    assert digits.test_images.shape == (360, 64)
    assert digits.train_labels.shape == (1437,)
    assert digits.test_labels.shape == (360,)
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    rows = {tuple(row.tolist()) for row in digits.train_images}
    assert not any(tuple(row.tolist()) in rows for row in digits.test_images)


def test_load_digits_is_what_scikit_learn_loads():
    """
    The file is read without scikit-learn, which is slow to import: not one number may differ.
    """
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    digits = load_digits()
    held_out = torch.arange(len(labels)) % 5 == 0
    images = torch.from_numpy(pixels).float() / 16
    assert torch.equal(digits.train_images, images[~held_out])
    assert torch.equal(digits.test_images, images[held_out])
    assert torch.equal(digits.train_labels, torch.from_numpy(labels)[~held_out])
    assert torch.equal(digits.test_labels, torch.from_numpy(labels)[held_out])
    assert digits.train_images.is_contiguous()
    assert digits.test_images.is_contiguous()


def test_load_digits_imports_no_scikit_learn():
    """
    Importing it costs each rank a second and 70 MiB; four ranks on two cores feel both.
    """
    look = "import sys; print({'sklearn', 'scipy'} & set(sys.modules))"
    source = f"from ddp_lessons.workloads import load_digits; load_digits(); {look}"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ran.stdout == "set()\n", ran.stderr


@pytest.mark.parametrize("found", [None, "elsewhere"])
def test_load_digits_says_what_is_missing(monkeypatch, tmp_path, found):
    """
    A scikit-learn that keeps its data elsewhere one day must not end as a bare FileNotFoundError.
    """
    package = found and ModuleSpec("sklearn", None, is_package=True)
    if package:
        package.submodule_search_locations.append(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    got = str(tmp_path) if found else "no scikit-learn"
    with pytest.raises(BadInput, match=re.escape(f"(got {got}). Install scikit-learn")):
        load_digits()


def test_digits_to_moves_every_part():
    """
    A part that stays behind shows as an error about devices, far from here. "meta" is everywhere.
    """
    digits = load_digits().to("meta")
    parts = (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels)
    assert [part.device.type for part in parts] == ["meta"] * 4
    assert digits.train_images.shape == (1437, 64)


def test_load_digits_has_all_classes_in_both_parts():
    """
    A class that one part lacks cannot be learned, or not be judged: half an even share at least.
    """
    digits = load_digits()
    for labels in (digits.train_labels, digits.test_labels):
        counts = torch.bincount(labels, minlength=10)
        assert (counts > 0.05 * len(labels)).all()


@pytest.mark.parametrize("name", MODELS)
def test_models_depend_on_their_seed_alone(name):
    """
    Ranks that ask for one seed get one model, whatever they drew before, and draw on as before.
    """
    make, num_parameters = MODELS[name]
    torch.manual_seed(1)
    first = make(3)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "the global random state was touched"
    second, other = make(3), make(4)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert sum(p.numel() for p in first.parameters()) == num_parameters


def test_digits_model_small_is_the_one_without_a_name():
    """
    Lesson 00 asks for no size.
    """
    small = digits_model(0, "small").parameters()
    assert all(torch.equal(a, b) for a, b in zip(digits_model(0).parameters(), small, strict=True))


def test_digits_model_refuses_a_size_that_is_none():
    """
    A typing mistake must name the sizes there are.
    """
    with pytest.raises(BadInput, match=r"expected one of small, medium, large \(got 'tiny'\)"):
        digits_model(0, "tiny")


def test_rank_generator_shares_no_stream():
    """
    With seed + rank, rank 1 of one seed would draw what rank 0 of the next draws.
    """
    named = [(seed, rank, step) for seed in (-1, 0, 1) for rank in range(4) for step in range(3)]
    drawn = {tuple(torch.rand(4, generator=rank_generator(*names)).tolist()) for names in named}
    assert len(drawn) == len(named)
    assert torch.rand(1, generator=rank_generator(5)) == torch.rand(1, generator=rank_generator(5))


def test_digits_batch_differs_between_ranks_and_is_the_same_anew():
    """
    Ranks with equal data learn nothing from each other, and a resumed run must draw the same.
    """
    digits = load_digits()
    before = torch.get_rng_state()
    images, labels = digits_batch(digits, 8, seed=1, rank=2, step=3)
    assert torch.equal(before, torch.get_rng_state())
    assert images.shape == (8, 64)
    assert labels.shape == (8,)
    again, _ = digits_batch(digits, 8, seed=1, rank=2, step=3)
    assert torch.equal(images, again)
    for other in ({"seed": 0}, {"rank": 1}, {"step": 4}):
        different, _ = digits_batch(digits, 8, **{"seed": 1, "rank": 2, "step": 3, **other})
        assert not torch.equal(images, different)
    everything, _ = digits_batch(digits, len(digits.train_labels))
    assert torch.equal(everything.sort(0).values, digits.train_images.sort(0).values)


def test_tied_model_has_one_weight_in_two_layers():
    """
    Its gradient is the sum of both uses; a copy would have only its own.
    """
    model = tied_model(0)
    images, labels = digits_batch(load_digits(), 16)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    tied = model.first.weight.grad.clone()
    model.second.weight = torch.nn.Parameter(model.first.weight.detach().clone())
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    # Two orders of adding up at most 16 products of a size: one rounding each, as in the tied sum.
    both = model.first.weight.grad + model.second.weight.grad
    assert torch.allclose(tied, both, rtol=0, atol=32 * torch.finfo(torch.float32).eps)
    assert not torch.allclose(tied, model.first.weight.grad, rtol=0, atol=1e-3)


@pytest.mark.parametrize("use_spare", [False, True])
def test_branched_model_uses_its_spare_head_only_when_asked(use_spare):
    """
    What DDP calls an unused parameter is one without a gradient.
    """
    model = branched_model(0)
    images, labels = digits_batch(load_digits(), 16)
    torch.nn.functional.cross_entropy(model(images, use_spare), labels).backward()
    assert all((p.grad is not None) == use_spare for p in model.spare.parameters())
    used = [*model.trunk.parameters(), *model.head.parameters()]
    assert all(p.grad is not None and p.grad.any() for p in used)


def test_batch_norm_model_keeps_statistics_of_what_it_saw():
    """
    Buffers that never move would teach nothing about buffers.
    """
    model = batch_norm_model(0)
    images, _ = digits_batch(load_digits(), 16)
    model(images)
    mean, variance, count = model.buffers()
    assert mean.any()
    assert (variance != 1).any()
    assert count == 1


def step_moves(model, loss, rate=0.1):
    """
    Do one step of SGD. Return whether every parameter that got a gradient moved, and some did.
    """
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss().backward()
    torch.optim.SGD(model.parameters(), lr=rate).step()
    moved = [
        not torch.equal(old, new)
        for old, new in zip(before, model.parameters(), strict=True)
        if new.grad is not None
    ]
    return bool(moved) and all(moved)


@pytest.mark.parametrize("name", MODELS)
def test_every_problem_can_be_learned(name):
    """
    A toy whose loss is flat passes every comparison of weights: nothing ever changes.
    """
    model = MODELS[name][0](0)
    if name == "linear":
        inputs, targets = linear_toy().inputs, linear_toy().targets

        def loss():
            return half_squares(model(inputs), targets) / len(inputs)

        rate = 1e-3  # the largest curvature is at most the mean of |inputs| ** 2, below 4 * 64
    elif name == "language":
        inputs, targets = text_batch(load_text().train, 8, 32)

        def loss():
            return next_character_loss(model(inputs), targets)

        rate = 0.1
    else:
        images, labels = digits_batch(load_digits(), 32)

        def loss():
            return torch.nn.functional.cross_entropy(model(images), labels)

        rate = 0.1
    with torch.no_grad():
        before = loss()
    assert step_moves(model, loss, rate)
    with torch.no_grad():
        assert loss() < before


def test_one_output_class_moves_no_weight_and_is_noticed():
    """
    Cross-entropy over one class is 0 whatever the weights are, and so is its gradient.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    images, _ = digits_batch(load_digits(), 32)

    def loss():
        return torch.nn.functional.cross_entropy(model(images), torch.zeros(32).long())

    assert loss() == 0
    assert not step_moves(model, loss)


def test_accuracy_counts_right_answers():
    """
    The share of samples whose largest logit is at the label.
    """
    logits = torch.eye(4)
    assert accuracy(lambda images: images, logits, torch.tensor([0, 1, 2, 3])) == 1.0
    assert accuracy(lambda images: images, logits, torch.tensor([0, 1, 0, 0])) == 0.5


def test_digits_can_be_learned_by_one_process():
    """
    The reference for lesson 00: one process on all digits reaches 95 % as well.
    """
    digits, model = load_digits(), digits_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(model(digits.train_images), digits.train_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert accuracy(model, digits.test_images, digits.test_labels) >= 0.95


def test_train_lowers_the_loss_and_hands_it_over_after_backward():
    """
    Lessons compare what ranks do in one and the same loop.
    """
    digits, seen = load_digits(), []
    batch = (digits.train_images[:16], digits.train_labels[:16])
    plain = train(digits_model(seed=0), *batch, num_steps=20)
    assert len(plain) == 20
    assert plain[-1] < plain[0] / 2
    again = train(digits_model(seed=0), *batch, after_backward=seen.append)
    assert again == plain[:5]
    assert [loss.item() for loss in seen] == again
