"""
The data and models of the lessons: they are the same everywhere, and can be learned.
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
    The digits are split without overlap or loss. If a held-out sample were also trained on, every
    accuracy of the course would be wrong.
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
    The digits equal scikit-learn's in every number, although the file is read without scikit-learn,
    which is slow to import.
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
    Loading the digits does not import scikit-learn, which costs each rank a second and 70 MiB.
    """
    look = "import sys; print({'sklearn', 'scipy'} & set(sys.modules))"
    source = f"from ddp_lessons.workloads import load_digits; load_digits(); {look}"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ran.stdout == "set()\n", ran.stderr


@pytest.mark.parametrize("found", [None, "elsewhere"])
def test_load_digits_says_what_is_missing(monkeypatch, tmp_path, found):
    """
    A missing data file is reported with the remedy, for example if a later scikit-learn moves it.
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
    `to` moves all tensors. One left behind would cause an error about devices elsewhere. The device
    "meta" exists on every machine.
    """
    digits = load_digits().to("meta")
    parts = (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels)
    assert [part.device.type for part in parts] == ["meta"] * 4
    assert digits.train_images.shape == (1437, 64)


def test_load_digits_has_all_classes_in_both_parts():
    """
    Both parts have all classes, each with at least half an even share. A missing class could not be
    learned or judged.
    """
    digits = load_digits()
    for labels in (digits.train_labels, digits.test_labels):
        counts = torch.bincount(labels, minlength=10)
        assert (counts > 0.05 * len(labels)).all()


@pytest.mark.parametrize("name", MODELS)
def test_models_depend_on_their_seed_alone(name):
    """
    A model depends on its seed alone, whatever was drawn before, and does not change the global
    random state.
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
    The model without a size is the small one, which lesson 00 uses.
    """
    small = digits_model(0, "small").parameters()
    assert all(torch.equal(a, b) for a, b in zip(digits_model(0).parameters(), small, strict=True))


def test_digits_model_refuses_a_size_that_is_none():
    """
    An unknown size is refused with a list of the sizes.
    """
    with pytest.raises(BadInput, match=r"expected one of small, medium, large \(got 'tiny'\)"):
        digits_model(0, "tiny")


def test_rank_generator_shares_no_stream():
    """
    Different seeds, ranks and steps give different random streams. With seed + rank, rank 1 of one
    seed would draw the numbers of rank 0 of the next.
    """
    named = [(seed, rank, step) for seed in (-1, 0, 1) for rank in range(4) for step in range(3)]
    drawn = {tuple(torch.rand(4, generator=rank_generator(*names)).tolist()) for names in named}
    assert len(drawn) == len(named)
    assert torch.rand(1, generator=rank_generator(5)) == torch.rand(1, generator=rank_generator(5))


def test_digits_batch_differs_between_ranks_and_is_the_same_anew():
    """
    Batches differ between ranks, which learn nothing from equal data, and are the same when drawn
    again, as a resumed run needs.
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
    The tied model uses one weight in two layers, so its gradient is the sum of both uses.
    """
    model = tied_model(0)
    images, labels = digits_batch(load_digits(), 16)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    tied = model.first.weight.grad.clone()
    model.second.weight = torch.nn.Parameter(model.first.weight.detach().clone())
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    # Both sums add at most 16 products of one size in different orders, with one rounding each.
    both = model.first.weight.grad + model.second.weight.grad
    assert torch.allclose(tied, both, rtol=0, atol=32 * torch.finfo(torch.float32).eps)
    assert not torch.allclose(tied, model.first.weight.grad, rtol=0, atol=1e-3)


@pytest.mark.parametrize("use_spare", [False, True])
def test_branched_model_uses_its_spare_head_only_when_asked(use_spare):
    """
    The spare head gets a gradient only when it is used. DDP calls a parameter without one unused.
    """
    model = branched_model(0)
    images, labels = digits_batch(load_digits(), 16)
    torch.nn.functional.cross_entropy(model(images, use_spare), labels).backward()
    assert all((p.grad is not None) == use_spare for p in model.spare.parameters())
    used = [*model.trunk.parameters(), *model.head.parameters()]
    assert all(p.grad is not None and p.grad.any() for p in used)


def test_batch_norm_model_keeps_statistics_of_what_it_saw():
    """
    The statistics of the BatchNorm model change with its data, because constant buffers would teach
    nothing.
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
    Make one step of SGD. Return whether some parameters got a gradient, and all of those changed.
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
    Every model can be learned. With a flat loss every comparison of weights would pass, because
    nothing changes.
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
    A model with one output class is recognised: its cross-entropy and gradient are 0 whatever its
    weights.
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
    The accuracy is the share of samples whose largest logit is at the label.
    """
    logits = torch.eye(4)
    assert accuracy(lambda images: images, logits, torch.tensor([0, 1, 2, 3])) == 1.0
    assert accuracy(lambda images: images, logits, torch.tensor([0, 1, 0, 0])) == 0.5


def test_digits_can_be_learned_by_one_process():
    """
    One process reaches 95 % on all digits, which is the reference for lesson 00.
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
    `train` lowers the loss and calls `after_backward` with it, because lessons compare what ranks
    do in this loop.
    """
    digits, seen = load_digits(), []
    batch = (digits.train_images[:16], digits.train_labels[:16])
    plain = train(digits_model(seed=0), *batch, num_steps=20)
    assert len(plain) == 20
    assert plain[-1] < plain[0] / 2
    again = train(digits_model(seed=0), *batch, after_backward=seen.append)
    assert again == plain[:5]
    assert [loss.item() for loss in seen] == again
