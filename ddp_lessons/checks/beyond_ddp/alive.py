"""
Count the bytes of tensors that are alive in this process.
"""

import gc

import torch


def tensors_alive():
    """
    Return the memory that Python's tensors keep alive, each piece once.

    Returns:
        dict: Address of a piece -> its bytes. A view counts with all that it is a view of.
    """
    gc.collect()  # what only waits to be collected is not held
    found = {}
    for one in gc.get_objects():
        # By its type, which asks the object nothing.
        if issubclass(type(one), torch.Tensor) and one.layout == torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def new_bytes(before):
    """
    Return the bytes of tensors that are alive now and were not when `tensors_alive` was asked.
    """
    return sum(num for place, num in tensors_alive().items() if place not in before)
