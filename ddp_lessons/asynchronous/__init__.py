"""
Training in which ranks do not wait for each other in every step, and what that costs.

Read the files in this order:

- `weights` brings a model's weights and gradients into one tensor, and back.
- `lockstep` averages gradients in every step, to be compared with.
- `server` is a parameter server and its workers, on send and recv; the age of gradients is bounded
  and recorded.
- `clock` counts in ticks, so that what asynchronous ranks do is the same on every run.
- `local` averages weights now and then (local SGD), or lets an outer optimizer do it (DiLoCo).
- `gossip` averages with one neighbour at a time.
- `stealing` shares work out while it is done.
- `example` is what the lesson trains, and `comparison` puts all ways on one table.

Lesson: 14_asynchronous.
"""

from .clock import Clock, finish_ticks
from .gossip import Gossip, partner_of
from .local import DiLoCo, LocalSGD, average_weights
from .lockstep import Lockstep
from .server import Arrival, Server, work, worker_spans
from .stealing import Queues, new_counters
from .weights import gradient_of, set_gradient, set_weights, weights_of

__all__ = [
    "Arrival",
    "Clock",
    "DiLoCo",
    "Gossip",
    "LocalSGD",
    "Lockstep",
    "Queues",
    "Server",
    "average_weights",
    "finish_ticks",
    "gradient_of",
    "new_counters",
    "partner_of",
    "set_gradient",
    "set_weights",
    "weights_of",
    "work",
    "worker_spans",
]
