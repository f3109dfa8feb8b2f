"""The check of a workgroup's operations on its accumulators."""

from __future__ import annotations

from coordgraph.interpreter.accumulators import Accumulators


def test_a_sum_that_was_sent_may_take_partials_and_end():
    """The check allows a workgroup to send its sum, then receive partial sums and store D.

    A butterfly reduction does this: each of two workgroups sends its sum to the other one.
    """
    used = Accumulators(3)
    used.zero("acc")
    used.add("acc", (0, 0))
    used.send("acc", (0, 0))
    used.receive("acc", (0, 0))
    used.finish("acc", (0, 0))
    used.store("acc", (0, 0))
    used.end()
    assert used.problem == ""
    used.receive("acc", (0, 0))
    assert used.problem == (
        "workgroup 3 adds a partial sum to accumulator 'acc', "
        "which was not zeroed since it was stored"
    )


def test_a_sum_is_sent_under_the_indices_of_its_own_tile():
    """The check refuses to send a sum of tile (0, 0) where the indices of D are of (2, 0)."""
    used = Accumulators(3)
    used.zero("acc")
    used.add("acc", (0, 0))
    used.send("acc", (2, 0))
    assert used.problem == (
        "workgroup 3 sends output tile (2, 0) with accumulator 'acc', which holds (0, 0)"
    )


def test_a_sum_that_is_left_at_the_end_is_seen():
    used = Accumulators(3)
    used.zero("acc")
    used.add("acc", (0, 1))
    used.end()
    assert used.problem == (
        "workgroup 3 ends with accumulator 'acc', whose sum of output tile (0, 1) is neither sent "
        "nor stored"
    )


def test_a_slot_is_added_after_a_wait():
    used = Accumulators(3)
    used.zero("acc")
    used.take("acc", 5, (0, 0))
    assert used.problem == (
        "workgroup 3 adds slot 5 to accumulator 'acc' and did not wait for the slot"
    )
