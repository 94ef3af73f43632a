"""
Every collective, written from messages between two ranks.

Read them in this order:

- `messages` sends one tensor from one rank to another, and swaps two without a deadlock.
- `naive` builds each collective round a hub: plain, and slow when there are many ranks.
- `log_rounds` has the same functions under the same names, in about log2(w) rounds.

The ring, which moves the fewest bytes, is `ddp_lessons.ring`. All take torch's arguments and keep
torch's meaning: `src` and `dst` are ranks of the default group, `group=None` is the default
group, and a result is written into the tensors that the caller hands over.

Lesson: 02_collectives.
"""

from . import log_rounds, messages, naive

__all__ = ["log_rounds", "messages", "naive"]
