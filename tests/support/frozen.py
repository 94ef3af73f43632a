"""
Hide the objects that a process has loaded from the garbage collector, before the process is forked.

A garbage collection writes to each object that it looks at, so a forked rank would copy all of
torch's Python objects: four ranks that collect once cost five times the processor time without this
module. The server of `worlds` imports it last.
"""

import gc

gc.freeze()
