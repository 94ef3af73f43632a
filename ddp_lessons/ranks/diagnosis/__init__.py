"""
Diagnosis of a cell from the snapshots of its ranks, and the words for it. It runs in the kernel.

The kernel passes in snapshots and outcomes. The functions here return which rank waits for which
other rank, and which rank is the culprit.
"""
