"""
The text and the language model: the package contains the text, and the model learns it.
"""

import math
from pathlib import Path

import pytest
import torch

import ddp_lessons.workloads
from ddp_lessons.errors import BadInput
from ddp_lessons.workloads import language_model, load_text, next_character_loss, text_batch

FOLDER = Path(ddp_lessons.workloads.__file__).parent


def test_load_text_is_what_its_note_says():
    """
    The text agrees with its note, which names its source.
    """
    text = load_text()
    written = text.decode(torch.cat([text.train, text.held_out]))
    assert written == (FOLDER / "as_you_like_it.txt").read_text()
    note = (FOLDER / "as_you_like_it.md").read_text()
    assert f"{len(written):,} characters, {len(text.characters)} different" in note
    assert "public domain" in note
    assert written.startswith("ACT I\n")
    assert "ACT II\n" in written
    assert "ACT III" not in written
    assert (len(text.train), len(text.held_out)) == (45_699, 5_078)


def test_package_brings_the_text_and_its_note():
    """
    The package data contain the text and its note. A file that pyproject.toml does not name would
    be missing after installation.
    """
    import tomllib

    settings = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["ddp_lessons.workloads"]
    brought = {path.name for pattern in patterns for path in FOLDER.glob(pattern)}
    assert brought == {"as_you_like_it.txt", "as_you_like_it.md"}


def test_encode_is_undone_by_decode_and_refuses_strangers():
    """
    `decode` is the inverse of `encode`, and an unknown character is refused, because it would be an
    index error on a rank.
    """
    text = load_text()
    assert text.decode(text.encode("All the world's a stage")) == "All the world's a stage"
    assert text.encode("").dtype == torch.int64
    with pytest.raises(BadInput, match=r"Unknown character: .* \(got '#'\)"):
        text.encode("rank #0")


def test_text_batch_targets_are_the_next_characters():
    """
    The targets are the next characters. If they were the inputs, the model would learn to copy.
    """
    numbers = load_text().train
    before = torch.get_rng_state()
    inputs, targets = text_batch(numbers, 6, 10, seed=1, rank=2, step=3)
    assert torch.equal(before, torch.get_rng_state())
    assert inputs.shape == targets.shape == (6, 10)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    again, _ = text_batch(numbers, 6, 10, seed=1, rank=2, step=3)
    assert torch.equal(inputs, again)
    for other in ({"seed": 0}, {"rank": 1}, {"step": 4}):
        different, _ = text_batch(numbers, 6, 10, **{"seed": 1, "rank": 2, "step": 3, **other})
        assert not torch.equal(inputs, different)


def test_text_batch_reaches_the_last_character_and_no_further():
    """
    Batches reach the last character and not beyond, because an off-by-one error would show only in
    the step that draws it.
    """
    numbers = torch.arange(5)
    inputs, targets = text_batch(numbers, 64, 3)
    assert set(inputs[:, 0].tolist()) == {0, 1}
    assert targets.max() == 4
    with pytest.raises(BadInput, match=r"Text too short: .* 5 characters \(got 5\)"):
        text_batch(numbers, 1, 5)


@pytest.mark.bitwise
def test_language_model_sees_no_later_character():
    """
    The model sees no later character, because it would learn to copy it.
    """
    model = language_model(63, seed=0)
    inputs, _ = text_batch(load_text().train, 2, 32)
    changed = inputs.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 63
    with torch.no_grad():
        logits, others = model(inputs), model(changed)
    # The first 20 positions compute the same sums in the same order, whatever follows.
    assert torch.equal(logits[:, :20], others[:, :20])
    assert not torch.equal(logits[:, 20:], others[:, 20:])


def test_language_model_refuses_a_piece_that_is_too_long():
    """
    A sequence that is too long is refused, because the error would otherwise be about shapes inside
    `forward`.
    """
    with pytest.raises(BadInput, match=r"at most 32 characters \(got 33\)"):
        language_model(63, seed=0)(torch.zeros(1, 33, dtype=torch.int64))


@pytest.fixture
def one_thread():
    """
    Compute on one thread, because in small operations threads wait longer for each other than they
    compute.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_language_model_learns_more_than_how_frequent_characters_are():
    """
    The loss on held-out text falls below the entropy of single characters, so the model uses
    context.
    """
    text = load_text()
    shares = torch.bincount(text.train, minlength=63).double() / len(text.train)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum().item()
    model = language_model(len(text.characters), seed=0)
    held_out = text_batch(text.held_out, 64, 32)
    with torch.no_grad():
        start = next_character_loss(model(held_out[0]), held_out[1]).item()
    assert abs(start - math.log(63)) < 0.1 * math.log(63), "knows nothing at first"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(250):
        inputs, targets = text_batch(text.train, 16, 32, step=step)
        loss = next_character_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        end = next_character_loss(model(held_out[0]), held_out[1]).item()
    assert end < 0.9 * entropy
