"""
The supervisor: the one parent of all ranks and of ipyparallel's controller, one process a set of ranks.

`start_ranks` starts it from the kernel. It ends with its kernel, however that ends, and takes the
controller and the ranks along.
"""
