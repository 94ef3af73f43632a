"""
The supervisor: one process for each set of ranks, the parent of these ranks and their controller.

`start_ranks` starts the supervisor from the kernel. When the kernel ends, in whatever way, the
supervisor ends the controller and the ranks, and then itself.
"""
