"""
Take what a process has loaded out of the garbage collector's sight, before it is forked.

A collection writes to each object that it looks at, and so a forked rank would copy all of torch's
Python objects: four ranks that collect once cost five times the processor time without this line.
The server of `worlds` imports this module last.
"""

import gc

gc.freeze()
