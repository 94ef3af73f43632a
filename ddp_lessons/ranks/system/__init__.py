"""
What the other rooms stand on: the system's processes, its clocks and its folders.

No process of its own, and no hold of running ranks: every process uses it.
"""
