"""The guards of schedules, of workers, of what Spark publishes, and of the lake."""

from tests.mutants.mutant import ALL, NONE, SERVERS, Area, Edit, Mutant

__all__ = ["GUARDS"]

SCHEDULES = Area(
    "schedules", "test_schedules.py::test_a_tick_is_made_when_it_is_due_and_not_before"
)
WORKERS = Area("workers", "test_queue_settle.py::test_an_acked_job_is_completed")
BUFFERS = Area("buffers", "unit/worker/test_buffer.py::test_what_has_no_order_is_begun_at_once")
LAKE = Area(
    "lake",
    "spark/test_archive.py::test_a_pass_takes_a_limited_number_and_the_rest_follows",
)
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
    Mutant(
        "a tick that people have moved is found where it is",
        SCHEDULES,
        ALL,
        (
            Edit(
                "store/ticks.py",
                "return [*locked, *(yield from self._lock_there(moved))]",
                "return [*locked, *moved[:0]]",
            ),
        ),
        ("test_schedules_ticks.py::test_what_people_have_moved_is_withdrawn_and_replaced_as_well",),
    ),
)

HANDLERS = (
    Mutant(
        "of one order, the next one waits until the one before is done",
        BUFFERS,
        NONE,
        (Edit("worker/buffer.py", "elif order in parked:", "elif order in ():"),),
        (
            "unit/worker/test_buffer.py::test_of_one_key_the_next_waits_for_the_one_before",
            "test_worker_order.py::test_one_key_one_at_a_time_in_order_and_keys_side_by_side",
        ),
    ),
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

IN_TURN = """        self.commit(snapshot, books, added, plan.ends)
        letters = self.letter_topics()
"""
FOLLOWING = """        for topic, ends in plan.ends.items():
            if topic not in letters:  # it may have become one just now
                self.follow(topic, ends)
"""

ARCHIVING = (
    Mutant(
        "the lake has what its group has acked",
        LAKE,
        NONE,  # on SQLite, where the database does not matter
        (
            Edit(
                "spark/pipelines/archiving/messages.py",
                IN_TURN + FOLLOWING,
                "        letters = self.letter_topics()\n"
                + FOLLOWING
                + "        self.commit(snapshot, books, added, plan.ends)\n",
            ),
        ),
        ("spark/test_archive.py::test_a_death_between_any_two_steps_neither_repeats_nor_loses",),
    ),
    Mutant(
        "whoever was overtaken adds nothing to the lake",
        LAKE,
        NONE,
        (
            Edit(
                "spark/pipelines/lake.py",
                "        snapshot.table.create_write_transaction(",
                "        snapshot.table.update_incremental()\n"
                "        snapshot.table.create_write_transaction(",
            ),
        ),
        ("spark/test_archive.py::test_who_was_overtaken_changes_nothing",),
    ),
)

GUARDS = (*TICKS, *HANDLERS, *STAGING, *ARCHIVING)
