"""The guards of publishing: the partition's lock, and ids that are known."""

from tests.mutants.mutant import ALL, SERVERS, Area, Edit, Mutant

__all__ = ["GUARDS"]

TOPICS = Area("topics", "test_publish.py::test_offsets_start_at_one_and_have_no_gaps")

GUARDS = (
    Mutant(
        "what is published in a transaction is there only if that commits",
        TOPICS,
        SERVERS,  # on SQLite, who does not write in it waits for it, in vain
        (
            Edit(
                "client.py",
                "        if connection is None:\n            return self._driver.run(make)",
                "        if True:\n            return self._driver.run(make)",
            ),
            Edit(
                "client.py",
                "        if connection is None:\n            return await self._driver.run(make)",
                "        if True:\n            return await self._driver.run(make)",
            ),
        ),
        ("test_transactions.py::test_an_exception_leaves_nothing",),
    ),
    Mutant(
        "a partition's counter is locked before it is read",
        TOPICS,
        ("mariadb",),
        (Edit("store/mysql.py", 'sql = COUNTERS + " FOR UPDATE"', "sql = COUNTERS"),),
        ("test_order.py::test_sixteen_publishers_lose_double_and_reorder_nothing",),
    ),
    Mutant(
        "a partition's counter is read from the row that is locked, and not from a snapshot",
        TOPICS,
        ("postgres",),
        (
            Edit(
                "store/postgres.py",
                "SET next_offset = p.next_offset + excluded.next_offset - 1,",
                "SET next_offset = (SELECT q.next_offset FROM {partitions} q WHERE q.id = p.id)"
                " + excluded.next_offset - 1,",
            ),
        ),
        ("test_fences.py::test_rivals_in_transactions_take_offsets_one_after_the_other",),
    ),
    Mutant(
        "a transaction takes SQLite's write lock when it begins",
        TOPICS,
        ("sqlite",),
        (Edit("drivers/sqlite.py", '.execute("BEGIN IMMEDIATE")', '.execute("BEGIN")'),),
        ("test_guards.py::test_a_transaction_may_read_first_and_write_later",),
    ),
    Mutant(
        "a publish in a caller's transaction takes SQLite's write lock before it reads",
        TOPICS,
        ("sqlite",),
        (
            Edit(
                "store/sqlite.py",
                '        yield Statement("topics.lock", self.dialect.sql(LOCK))\n',
                "",
            ),
        ),
        ("test_guards.py::test_a_callers_plain_begin_takes_the_write_lock_before_it_reads",),
    ),
    Mutant(
        "partitions are locked before ids are looked for",
        TOPICS,
        ("postgres",),
        (Edit("store/postgres.py", "            yield from self.lock_partitions(fresh)\n", ""),),
        (
            "test_guards.py::test_the_lock_is_held_before_ids_are_looked_for",
            "test_guards.py::test_a_rival_in_a_transaction_waits_and_finds_the_id",
        ),
    ),
    Mutant(
        "the partitions of a batch are locked in one order",
        TOPICS,
        ("postgres",),
        (Edit("store/postgres.py", "return dict(sorted(groups.items()))", "return groups"),),
        ("test_guards.py::test_locks_are_taken_in_the_order_of_names",),
    ),
    Mutant(
        "the partitions of a batch are locked in one order",
        TOPICS,
        ("mariadb",),
        (
            Edit(
                "store/topics.py",
                "partitions = sorted({entry.partition for entry in entries})",
                "partitions = list(dict.fromkeys(entry.partition for entry in entries))",
            ),
        ),
        ("test_guards.py::test_locks_are_taken_in_the_order_of_names",),
    ),
    *(
        Mutant(
            "an id is unique within its partition",
            TOPICS,
            (dialect.replace("mysql", "mariadb"),),
            (
                Edit(
                    f"store/migrations/{dialect}/0001_initial.sql",
                    "PRIMARY KEY (partition_id, message_offset),\n"
                    "    UNIQUE (partition_id, message_id)\n",
                    "PRIMARY KEY (partition_id, message_offset)\n",
                ),
            ),
            (
                "test_publish.py::test_a_second_publish_with_the_same_id_adds_nothing",
                "test_order.py::test_rivals_with_the_same_ids_agree_on_one_message",
            ),
        )
        for dialect in ("sqlite", "postgres", "mysql")
    ),
    Mutant(
        "what has a known id is left out of a batch",
        TOPICS,
        ("postgres",),
        (
            Edit(
                "store/postgres.py",
                '" AND NOT EXISTS (SELECT FROM known)" if check else ""',
                '""',
            ),
        ),
        ("test_publish.py::test_a_second_publish_with_the_same_id_adds_nothing",),
    ),
    Mutant(
        "an operation that fails is rolled back",
        TOPICS,
        ALL,
        (
            Edit(
                "drivers/base.py",
                "        healthy = True\n"
                "        return result\n"
                "    except Exception as error:\n"
                "        healthy = yield from rolled_back(session, error)\n",
                "        healthy = True\n"
                "        return result\n"
                "    except Exception as error:\n"
                "        healthy = not isinstance(error, ConnectionLost)\n",
            ),
        ),
        ("test_guards.py::test_a_failed_operation_leaves_nothing_written_and_nothing_locked",),
    ),
    Mutant(
        "an operation that fails in a caller's transaction leaves no half of it",
        TOPICS,
        ("sqlite", "mariadb"),
        (Edit("drivers/base.py", "if not guest.savepoints:", "if True:"),),
        ("test_faults.py::test_half_a_publish_is_undone_in_a_callers_transaction",),
    ),
    Mutant(
        "a publish that is repeated looks for the ids that it made",
        TOPICS,
        ("postgres",),
        (
            Edit(
                "store/postgres.py",
                "found |= yield from self.append(run, check=True, sole=False, notify=notify)",
                "found |= yield from self.append(run, check=given, sole=False, notify=notify)",
            ),
        ),
        ("test_faults.py::test_a_commit_whose_answer_is_lost_doubles_nothing",),
    ),
    Mutant(
        "a publish that is repeated looks for the ids that it made",
        TOPICS,
        ("mariadb",),
        (
            Edit(
                "store/topics.py",
                "known = yield from self.find_messages(placed)",
                "given = placed[0].entry.id_given\n                "
                "known = (yield from self.find_messages(placed)) if given else {}",
            ),
        ),
        ("test_faults.py::test_a_commit_whose_answer_is_lost_doubles_nothing",),
    ),
)
