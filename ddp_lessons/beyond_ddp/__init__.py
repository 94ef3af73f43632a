"""
What if the model does not fit: ranks share out its parameters, its layers, or its depth.

Read the rooms in this order:

- `fsdp` cuts every parameter, and has it whole only while a layer needs it.
- `tensor_parallel` cuts each layer: every rank has some of its rows or columns.
- `pipeline` gives each rank some layers, one after the other.
- `mesh` puts ranks into rows and columns, for two ways at once, and chooses how many of each.

Lesson: 15_beyond_ddp.
"""
