"""
What if the model does not fit: layers, matrices and batches that ranks share out.

Read the rooms in this order:

- `fsdp` cuts every parameter, and has it whole only while a layer needs it.

Lesson: 15_beyond_ddp.
"""
