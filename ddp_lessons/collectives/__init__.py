"""
Every collective, written from messages between two ranks.

    from ddp_lessons.collectives import log_rounds, naive

    naive.all_reduce(tensor)        # round a hub: w - 1 messages, one after the other
    log_rounds.all_reduce(tensor)   # the same call in about log2(w) rounds

Read the files in this order:

- `messages` sends one tensor from one rank to another, and swaps two without a deadlock.
- `reductions` puts two ranks' numbers together: sum, average, product, least, greatest.
- `hub` builds each collective round one rank that talks to all others.
- `rounds` has the same functions, with all ranks at work at once.
- `all_rank_calls` and `calls` give both the names, arguments and meaning that torch gives them;
  `arguments` refuses what does not fit before the first message.

The ring, which moves the fewest bytes, is `ddp_lessons.ring`.

Lesson: 02_collectives.
"""

from . import hub, rounds
from .all_rank_calls import AllRankCalls
from .calls import Calls
from .messages import Peers

__all__ = ["AllRankCalls", "Calls", "Peers", "log_rounds", "naive"]

naive = Calls(hub)
"""
The collectives round a hub.
"""

log_rounds = Calls(rounds)
"""
The collectives in about log2(w) rounds.
"""
