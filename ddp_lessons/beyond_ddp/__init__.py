"""
What if the model does not fit: ranks share out its parameters, its layers, or its depth.

Read the rooms in this order:

- `pipeline` gives each rank some layers, one after the other.

Lesson: 15_beyond_ddp.
"""
