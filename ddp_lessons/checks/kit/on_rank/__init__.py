"""
The part of a check that runs inside a rank. The kernel calls `case_runner.preflight` and then
`case_runner.run_case` there.

`rank_record` records what the answer did. `case_environment` gives it a world of the case's size,
and `simulated_world` plays worlds that are larger than the running one. `argument_state`,
`snapshots` and `patching` show what the answer changed, copy what it returned, and restore what was
replaced in torch. `hash_order` gives each rank its own order of a set.
"""
