"""
What to do when the model does not fit on one rank: cut it.

The rooms, in the order of the lesson:

- `tensor_parallel` cuts each layer: every rank has some of its rows or columns.
- `mesh` puts ranks into rows and columns, for two ways at once, and chooses how many of each.

Lesson: 15_beyond_ddp.
"""
