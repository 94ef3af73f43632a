"""
The limit on wrong class codes: no program can guess a code, and one address does not lock out
another.
"""

import pytest

from ddp_lessons.course.classroom.board.rate_limit import MOST_WRONG_CODES, WrongCodes
from ddp_lessons.course.classroom.board.roster import CODE_LETTERS, KEPT_S, LETTERS

ROOM, ELSEWHERE = "192.0.2.7", "198.51.100.9"


@pytest.fixture
def clock():
    """
    A clock's seconds in a list, which a test sets.
    """
    return [1000.0]


@pytest.fixture
def codes(clock):
    """
    WrongCodes with that clock.
    """
    return WrongCodes(lambda: clock[0])


def guess(codes, address, times=MOST_WRONG_CODES):
    """
    Record wrong codes from an address.
    """
    for _ in range(times):
        codes.note(address)


def test_a_room_behind_one_address_may_mistype(codes):
    """
    Thirty learners behind one address may each mistype the code once.
    """
    guess(codes, ROOM, 30)
    assert not codes.are_too_many(ROOM)


def test_who_guesses_waits_and_nobody_else_does(codes, clock):
    """
    An address with too many wrong codes must wait, and other addresses need not. A common limit
    would let one program lock out a whole room.
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
    Addresses of one machine share a limit, because a machine with IPv6 could use a new address for
    each guess.
    """
    guess(codes, one)
    assert codes.are_too_many(one)
    assert codes.are_too_many(other) == is_same


def test_addresses_are_forgotten(codes, clock):
    """
    Old addresses are forgotten, because a board runs all day and requests may come from anywhere.
    """
    for number in range(100):
        codes.note(f"192.0.2.{number}")
    clock[0] += 61
    assert not codes.are_too_many(ROOM)
    assert not codes._times


def test_a_day_of_guessing_finds_no_code():
    """
    The limit gives the odds that its docstring names: a day of guessing finds a code with odds of 1
    to 740.
    """
    odds = len(LETTERS) ** CODE_LETTERS / (MOST_WRONG_CODES * KEPT_S / 60)
    assert round(odds, -1) == 740
