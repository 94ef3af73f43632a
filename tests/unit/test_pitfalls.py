"""
Wrong answers that real checkers accepted, and the tests that show them wrong and the course's code
right.
"""

import ast

import pytest
from paths import ROOT

TESTS = ROOT / "tests"

PITFALLS = {
    "ring: pass the whole tensor round": [
        "test_ring.py::test_ring_all_reduce_sends_the_fewest_bytes",
    ],
    "ring: a blocking send before the receive": [
        "test_ring.py::test_ring_of_blocking_sends_never_ends",
        "test_ring.py::test_rings_do_not_deadlock_on_large_messages",
    ],
    "replica: the argument of a post-accumulate hook taken for the gradient": [
        "test_replicas_weights.py::test_wrong_averages_are_wrong_where_replicas_are_right",
    ],
    "replica: a tensor's hook, which sees the last micro-batch only": [
        "test_replicas_weights.py::test_wrong_averages_are_wrong_where_replicas_are_right",
        "test_replicas.py::test_replicas_accumulate_as_ddp",
    ],
    "replica: everything is sent after backward": [
        "test_replicas_messages.py::test_replicas_differ_in_number_and_time_of_their_messages",
    ],
    "replica: one message a parameter": [
        "test_replicas_messages.py::test_replicas_differ_in_number_and_time_of_their_messages",
    ],
    "sampler: every rank sees everything, and sets of tensors do not show it": [
        "test_samplers_shards.py::test_a_sampler_that_the_loader_never_gets_distributes_nothing",
        "test_samplers_shards.py::test_shards_equal_torchs_index_for_index",
    ],
    "sampler: every rank shuffles by itself": [
        "test_samplers_shards.py::test_shards_are_equal_only_if_every_rank_has_the_same_seed",
    ],
    "averaging: a sum, or divided twice": [
        "test_replicas_weights.py::test_wrong_averages_are_wrong_where_replicas_are_right",
    ],
    "averaging: the mean of means of unequal shards": [
        "test_replicas_weights.py::test_replicas_equal_one_process_on_the_whole_batch",
        "test_workloads_toys.py::test_averaging_means_of_unequal_shards_is_not_the_mean_of_all",
    ],
    "accumulation: a sync with every micro-batch": [
        "test_accumulation_window.py::test_window_syncs_each_bucket_once_and_is_the_whole_batch",
    ],
    "accumulation: not divided by the window": [
        "test_accumulation_mistakes.py::test_forgetting_to_divide_multiplies_the_gradient",
    ],
    "accumulation: the last short window is lost": [
        "test_accumulation_window.py::test_windows_lose_no_batch",
        "test_accumulation_window.py::test_last_short_window_has_the_whole_weight",
    ],
    "checkpoint: weights only": [
        "test_checkpoint.py::test_weights_alone_do_not_resume_a_run",
    ],
    "checkpoint: the epoch saved after running it": [
        "test_checkpoint.py::test_no_sample_is_seen_twice_when_the_epoch_is_saved_after_running_it",
    ],
    "checkpoint: written in place": [
        "test_checkpoint_files.py::test_written_in_place_a_killed_save_leaves_nothing",
        "test_checkpoint_folder.py::test_killed_at_random_moments_the_last_good_one_loads",
    ],
    "evaluation: padded duplicates are counted": [
        "test_samplers_evaluation.py::test_exact_accuracy_counts_every_sample_once",
    ],
    "toy: it cannot learn": [
        "test_workloads.py::test_one_output_class_moves_no_weight_and_is_noticed",
        "test_workloads.py::test_every_problem_can_be_learned",
    ],
}
"""
{wrong answer: the tests that show it}. Each test contains the wrong answer, or compares with it, so
a test that accepts both cannot be listed.
"""


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_pitfall_is_shown_by_a_test(pitfall):
    """
    Each listed test exists and is not skipped, so that a renamed or deleted test does not lose its
    pitfall unnoticed.
    """
    for address in PITFALLS[pitfall]:
        file, _, name = address.partition("::")
        functions = {
            node.name: node
            for node in ast.parse(next(TESTS.rglob(file)).read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, f"{address} is gone: what shows this pitfall now?"
        marks = " ".join(map(ast.unparse, functions[name].decorator_list))
        assert "skip" not in marks, f"{address} is skipped"
