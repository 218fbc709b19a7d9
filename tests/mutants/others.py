"""The guards of schedules, of workers' transactions and of what Spark publishes."""

from tests.mutants.mutant import ALL, SERVERS, Area, Edit, Mutant

__all__ = ["GUARDS"]

SCHEDULES = Area(
    "schedules", "test_schedules.py::test_a_tick_is_made_when_it_is_due_and_not_before"
)
WORKERS = Area("workers", "test_queue_settle.py::test_an_acked_job_is_completed")
STAGES = Area("stages", "test_staging.py::test_what_is_published_is_as_if_by_publish")

AS_IT_WAS = Edit(
    "store/schedules.py",
    "WHERE name = ? AND config_hash = ? AND next_at = ? AND paused = 0 {skip_locked}",
    "WHERE name = ? AND (config_hash = ? OR 1 = 1) AND (next_at = ? OR 1 = 1) AND paused = 0"
    " {skip_locked}",
)

TICKS = (
    Mutant(
        "a tick is unique: its row is remembered",
        SCHEDULES,
        ALL,
        (
            Edit("store/ticks.py", "known = {row[0] for row in rows}", "known: set[int] = set()"),
            Edit(
                "store/ticks.py",
                'yield from self.queues.insert("ticks.insert", "{ticks}", COLUMNS, fresh)\n',
                "ending = self.dialect.unless_there('job_id')\n"
                "        yield from self.queues.insert("
                '"ticks.insert", "{ticks}", COLUMNS, fresh, ending)\n',
            ),
        ),
        ("test_schedules.py::test_a_job_that_was_done_long_ago_is_not_made_again",),
    ),
    Mutant(
        "who fires a schedule finds it as it was loaded",
        SCHEDULES,
        ALL,
        (AS_IT_WAS,),
        ("test_schedules.py::test_who_comes_late_changes_nothing",),
    ),
    Mutant(
        "who fires a schedule waits for nobody who has its row",
        SCHEDULES,
        SERVERS,
        (
            Edit(
                "store/schedules.py",
                "AND next_at = ? AND paused = 0 {skip_locked}",
                "AND next_at = ? AND paused = 0 {for_update}",
            ),
        ),
        (
            (
                "test_schedules_tending.py"
                "::test_a_row_that_somebody_has_locked_delays_its_own_schedule_only"
            ),
        ),
    ),
    Mutant(
        "a schedule that was paused since it was loaded does not fire",
        SCHEDULES,
        ALL,
        (
            Edit(
                "store/schedules.py",
                "AND next_at = ? AND paused = 0 {skip_locked}",
                "AND next_at = ? {skip_locked}",
            ),
        ),
        ("test_schedules.py::test_who_comes_late_changes_nothing",),
    ),
    Mutant(
        "an install that is repeated has its first outcome",
        SCHEDULES,
        ALL,
        (Edit("store/schedules.py", "if found.revision == revision:", "if False:"),),
        ("test_schedules.py::test_a_repeat_after_a_lost_answer_tells_what_was_done",),
    ),
    Mutant(
        "who puts ticks ahead of time locks the queue",
        SCHEDULES,
        ("postgres",),  # elsewhere, to make sure of the queue is to lock it
        (
            Edit(
                "store/ticks.py",
                'LOCK_QUEUE = "SELECT id FROM {queues} WHERE queue = ? {for_update}"',
                'LOCK_QUEUE = "SELECT id FROM {queues} WHERE queue = ?"',
            ),
        ),
        ("test_fences.py::test_who_puts_ticks_waits_for_another_configuration_of_them",),
    ),
)

HANDLERS = (
    Mutant(
        "a transactional handler's ack is in its transaction",
        WORKERS,
        ALL,
        (
            Edit(
                "worker/executor.py",
                "unit.tx = settling_in(tx)",
                "unit.tx = None",
            ),
        ),
        (
            "test_worker_transactions.py::test_effects_and_acks_are_one",
            (
                "test_worker_transactions.py"
                "::test_a_connection_that_is_cut_in_the_middle_undoes_it_all"
            ),
            (
                "test_worker_transactions.py"
                "::test_a_commit_whose_answer_is_lost_counts_and_is_not_repeated"
            ),
        ),
    ),
    Mutant(
        "a handler whose time is over can neither write nor settle",
        WORKERS,
        ("sqlite", "postgres"),
        (
            Edit("worker/executor.py", "unit.over, unit.manual = True, False", "pass"),
            Edit("worker/executor.py", "        unit.over = True\n", ""),
        ),
        ("test_worker_transactions.py::test_a_straggler_can_neither_write_nor_settle",),
    ),
    Mutant(
        "a lock is extended while its handler runs",
        WORKERS,
        ALL,
        (Edit("store/settles.py", "(token, max(now + lock_us, locked))", "(token, locked)"),),
        (("test_worker_pace.py::test_a_handler_may_take_longer_than_its_lock_and_its_visibility"),),
    ),
)

STAGING = (
    Mutant(
        "a version of Spark's is published once",
        STAGES,
        ALL,
        (
            Edit(
                "store/staging.py",
                "if (yield from self.entered(name)) >= version.number:",
                "if (yield from self.entered(name)) < -1:",
            ),
        ),
        (
            "test_staging.py::test_a_version_is_published_once",
            "test_staging.py::test_two_writers_of_one_version_publish_once",
        ),
    ),
)

GUARDS = (*TICKS, *HANDLERS, *STAGING)
