"""
Reasoning on what ranks say of themselves, and the words for it. It runs in the kernel, too.

No process of its own: the kernel asks, this room says who waits for whom, and who cannot come.
"""
