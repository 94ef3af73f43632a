"""
The data and models of the lessons are the same everywhere, and can be learned.
"""

import torch

from ddp_lessons.workloads import accuracy, digits_model, load_digits


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


def test_load_digits_has_all_classes_in_both_parts():
    """
    A class that one part lacks cannot be learned, or not be judged: half an even share at least.
    """
    digits = load_digits()
    for labels in (digits.train_labels, digits.test_labels):
        counts = torch.bincount(labels, minlength=10)
        assert (counts > 0.05 * len(labels)).all()


def test_digits_model_depends_on_its_seed_alone():
    """
    Ranks that ask for one seed get one model, whatever they drew before.
    """
    torch.manual_seed(1)
    first = digits_model(seed=3)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "the global random state was touched"
    second, other = digits_model(seed=3), digits_model(seed=4)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert sum(p.numel() for p in first.parameters()) == 4810


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
