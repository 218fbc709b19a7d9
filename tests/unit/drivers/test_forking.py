"""What registers for a fork is reset in the child, for as long as it lives and no longer."""

import gc

from rowmq.drivers import forking
from tests.unit.drivers.test_pool import exit_code, fork


class Witness:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def suspend(self) -> None:
        self.seen.append("suspend")

    def resume(self) -> None:
        self.seen.append("resume")

    def reset(self) -> None:
        self.seen.append("reset")


def test_a_child_resets_and_a_parent_resumes() -> None:
    witness = Witness()
    forking.around_fork(witness)
    in_child: list[bool] = []

    def work() -> None:
        in_child.append(witness.seen == ["suspend", "reset"])
        assert in_child == [True]

    assert exit_code(fork(work)) == 0
    assert witness.seen == ["suspend", "resume"]


def test_only_a_child_resets_what_needs_no_care_in_the_parent() -> None:
    witness = Witness()
    forking.after_fork(witness)

    def work() -> None:
        assert witness.seen == ["reset"]

    assert exit_code(fork(work)) == 0
    assert witness.seen == []


def test_nothing_is_kept_alive_by_being_registered() -> None:
    before = len(forking._reset), len(forking._suspended)
    witness = Witness()
    forking.around_fork(witness)
    del witness
    gc.collect()
    assert (len(forking._reset), len(forking._suspended)) <= before
