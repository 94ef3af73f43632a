"""
Wrong class codes: no program finds the right one, and no room is kept out by somebody elsewhere.
"""

import pytest

from ddp_lessons.board.rate_limit import MOST_WRONG_CODES, WrongCodes
from ddp_lessons.board.roster import CODE_LETTERS, KEPT_S, LETTERS

ROOM, ELSEWHERE = "192.0.2.7", "198.51.100.9"


@pytest.fixture
def clock():
    """
    Seconds that a test sets.
    """
    return [1000.0]


@pytest.fixture
def codes(clock):
    """
    Wrong codes by that clock.
    """
    return WrongCodes(lambda: clock[0])


def guess(codes, address, times=MOST_WRONG_CODES):
    """
    Note wrong codes from an address.
    """
    for _ in range(times):
        codes.note(address)


def test_a_room_behind_one_address_may_mistype(codes):
    """
    Thirty type the same code at the same moment, and each slips once.
    """
    guess(codes, ROOM, 30)
    assert not codes.are_too_many(ROOM)


def test_who_guesses_waits_and_nobody_else_does(codes, clock):
    """
    Counted for all together, one program would keep a whole room out.
    """
    guess(codes, ELSEWHERE, MOST_WRONG_CODES - 1)
    assert not codes.are_too_many(ELSEWHERE)
    codes.note(ELSEWHERE)
    assert codes.are_too_many(ELSEWHERE)
    assert not codes.are_too_many(ROOM)
    clock[0] += 59
    assert codes.are_too_many(ELSEWHERE)
    clock[0] += 2
    assert not codes.are_too_many(ELSEWHERE)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.8", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "0.0.0.0", False),
    ],
)
def test_addresses_of_one_machine_count_as_one(codes, one, other, is_same):
    """
    A machine with IPv6 could use another one for each guess.
    """
    guess(codes, one)
    assert codes.are_too_many(one)
    assert codes.are_too_many(other) == is_same


def test_addresses_are_forgotten(codes, clock):
    """
    A board runs all day, and what asks it may come from anywhere.
    """
    for number in range(100):
        codes.note(f"192.0.2.{number}")
    clock[0] += 61
    assert not codes.are_too_many(ROOM)
    assert not codes._times


def test_a_day_of_guessing_finds_no_code():
    """
    What the bound is for: the odds that its docstring names.
    """
    odds = len(LETTERS) ** CODE_LETTERS / (MOST_WRONG_CODES * KEPT_S / 60)
    assert round(odds, -1) == 740
