"""The guards of consuming: leases, settles, and what garbage collection may take."""

from tests.mutants.mutant import ALL, SERVERS, Area, Edit, Mutant

__all__ = ["GUARDS"]

GROUPS = Area(
    "groups",
    "test_consume.py::test_messages_are_delivered_in_order_and_once_they_are_acked_never_again",
)

STEPWISE = ("sqlite", "mariadb")

FENCED = """AND o.group_id = $1 AND o.partition_id = w.partition_id AND o.leased_by = $2
              AND o.epoch = w.epoch AND o.version = w.version
            FOR UPDATE
"""


def fence(old: str, new: str) -> Edit:
    """A change of what PostgreSQL's one statement asks of a lease."""
    return Edit("store/postgres_leases.py", FENCED, FENCED.replace(old, new))


LEASES = (
    Mutant(
        "a write of a group's place names owner, epoch and version",
        GROUPS,
        STEPWISE,
        (Edit("store/leases.py", "(*PLACE, *FENCE), MOVES", "PLACE, MOVES"),),
        ("test_settle.py::test_a_settle_after_the_lease_was_lost_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "a write of a group's place names owner, epoch and version",
        GROUPS,
        ("postgres",),
        (
            fence("o.leased_by = $2", "$2::bigint > 0"),
            Edit(
                "store/postgres_leases.py",
                "AND o.epoch = w.epoch AND o.version = w.version\n",
                "\n",
            ),
        ),
        ("test_settle.py::test_a_settle_after_the_lease_was_lost_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "the epoch: a lease that was taken away and given back is another one",
        GROUPS,
        STEPWISE,
        (
            Edit(
                "store/leases.py",
                "(*PLACE, *FENCE), MOVES",
                '(*PLACE, "leased_by", "version"), MOVES',
            ),
            Edit("subscriber/settling.py", "        and place.epoch == holding.epoch\n", ""),
        ),
        ("test_settle_in_transactions.py::test_a_stale_lease_fails_the_transaction",),
    ),
    Mutant(
        "the epoch: a lease that was taken away and given back is another one",
        GROUPS,
        ("postgres",),
        (
            fence("o.epoch = w.epoch AND ", ""),
            Edit("subscriber/settling.py", "        and place.epoch == holding.epoch\n", ""),
        ),
        ("test_settle_in_transactions.py::test_a_stale_lease_fails_the_transaction",),
    ),
    Mutant(
        "the version: what others wrote to a place meanwhile is not overwritten",
        GROUPS,
        STEPWISE,
        (
            Edit(
                "store/leases.py",
                "(*PLACE, *FENCE), MOVES",
                "(*PLACE, *FENCE[:2]), MOVES",
            ),
        ),
        ("test_fences.py::test_a_redrive_before_a_write_of_the_owner_is_not_overwritten",),
    ),
    Mutant(
        "the version: what others wrote to a place meanwhile is not overwritten",
        GROUPS,
        ("postgres",),
        (fence(" AND o.version = w.version", ""),),
        ("test_fences.py::test_a_redrive_before_a_write_of_the_owner_is_not_overwritten",),
    ),
    Mutant(
        "a place is locked before it is asked whether it is as it was",
        GROUPS,
        ("postgres",),
        (fence("            FOR UPDATE\n", ""),),
        ("test_fences.py::test_a_write_of_the_owner_waits_for_a_seek_that_is_not_committed",),
    ),
    Mutant(
        "places are written all or none",
        GROUPS,
        STEPWISE,
        (Edit("store/leases.py", "if result.rowcount != len(run):", "if False:"),),
        ("test_settle.py::test_a_settle_after_the_lease_was_lost_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "places are written all or none",
        GROUPS,
        ("postgres",),
        (
            Edit(
                "store/postgres_leases.py",
                "AND o.partition_id = w.partition_id AND EXISTS (SELECT FROM whole)\n",
                "AND o.partition_id = w.partition_id"
                " AND o.partition_id IN (SELECT partition_id FROM fenced)\n",
            ),
        ),
        ("test_fences.py::test_what_is_written_of_many_places_is_all_of_it_or_nothing",),
    ),
    Mutant(
        "a place and its ranges are written in one transaction",
        GROUPS,
        STEPWISE,
        (
            Edit(
                "store/leases.py",
                'result = yield Statement("leases.advance", self.dialect.sql(sql), params)',
                'result = yield Statement("leases.advance", self.dialect.sql(sql), params, True)',
            ),
        ),
        ("test_fences.py::test_a_settle_that_fails_half_way_has_written_nothing",),
    ),
    Mutant(
        "a dead letter and its settle are written in one transaction",
        GROUPS,
        ("postgres",),
        (
            Edit(
                "store/postgres_leases.py",
                "yield from self._advance(member, changes, spans=(), find=None, sole=False)",
                "yield from self._advance(member, changes, spans=(), find=None, sole=True)",
            ),
        ),
        ("test_dead_letters.py::test_a_letter_and_its_settle_are_one",),
    ),
    Mutant(
        "a write that was refused is looked for: its first try may have been committed",
        GROUPS,
        ALL,
        (
            Edit(
                "subscriber/subscription.py",
                "if spans or not (yield from self._is_written(drafts, changes)):",
                "if True:",
            ),
        ),
        ("test_fences.py::test_a_settle_whose_answer_is_lost_counts_once",),
    ),
    Mutant(
        "a lease that is taken is free",
        GROUPS,
        ALL,
        (Edit("store/leases.py", "    WHERE o.leased_by = 0\n", "    WHERE o.leased_by >= 0\n"),),
        ("test_fences.py::test_a_lease_that_is_not_free_any_more_is_not_taken",),
    ),
    Mutant(
        "who frees a lease frees only its own",
        GROUPS,
        ALL,
        (Edit("store/leases.py", 'keys = (*PLACE, "leased_by")', "keys = PLACE"),),
        ("test_fences.py::test_a_lease_that_is_somebody_elses_is_not_freed",),
    ),
    Mutant(
        "times are the database's, however this machine's clock is set",
        GROUPS,
        ALL,
        (
            Edit(
                "subscriber/subscription.py",
                "return self._told + round((time.monotonic() - self._at) * 1_000_000)",
                "return time.time_ns() // 1000",
            ),
        ),
        (
            (
                "test_regressions.py"
                "::test_weakness_05_a_wrong_clock_steals_no_lease_and_delivers_nothing_early"
            ),
        ),
    ),
    Mutant(
        "who takes a lease is alive",
        GROUPS,
        ALL,
        (
            Edit(
                "store/leases.py",
                "WHERE s.id = ? AND s.expires_at > {now})\n    ORDER BY",
                "WHERE s.id = ?)\n    ORDER BY",
            ),
        ),
        ("test_fences.py::test_who_is_dead_takes_no_lease",),
    ),
    Mutant(
        "who is swept is dead",
        GROUPS,
        ALL,
        (
            Edit(
                "store/leases.py",
                'if (yield Statement("leases.alive", sql, (subscriber_id,))).rows:\n'
                "                continue",
                'if (yield Statement("leases.alive", sql, (subscriber_id,))).rows is None:\n'
                "                continue",
            ),
        ),
        ("test_fences.py::test_who_is_alive_again_is_not_swept",),
    ),
    Mutant(
        "a heartbeat revives nobody",
        GROUPS,
        STEPWISE,
        (
            Edit(
                "store/leases.py",
                'WHERE id = ? AND expires_at > {now}"""\n\n    finds_more',
                'WHERE id = ?"""\n\n    finds_more',
            ),
            Edit(
                "store/leases.py",
                'ALIVE = "SELECT id FROM {subscribers} WHERE id = ? AND expires_at > {now}"',
                'ALIVE = "SELECT id FROM {subscribers} WHERE id = ?"',
            ),
        ),
        ("test_fences.py::test_a_heartbeat_that_comes_too_late_revives_nobody",),
    ),
    Mutant(
        "a heartbeat revives nobody",
        GROUPS,
        ("postgres",),
        (
            Edit(
                "store/postgres_leases.py",
                "WHERE s.id = ? AND s.expires_at > {now}\n            FOR UPDATE SKIP LOCKED",
                "WHERE s.id = ?\n            FOR UPDATE SKIP LOCKED",
            ),
        ),
        ("test_fences.py::test_a_heartbeat_that_comes_too_late_revives_nobody",),
    ),
    Mutant(
        "what a former owner had in flight is due at once",
        GROUPS,
        ALL,
        (
            Edit(
                "store/leases.py",
                "        loaded = yield from self.give_back(member.group_id, loaded)\n",
                "",
            ),
        ),
        (
            (
                "test_redelivery.py"
                "::test_what_a_crashed_subscriber_had_in_flight_is_delivered_to_the_next"
            ),
        ),
    ),
    Mutant(
        "only the last delivery of a message can be settled",
        GROUPS,
        ALL,
        (
            Edit(
                "subscriber/holding.py",
                "        and (known.attempts, known.reopened) == (token.attempt, token.reopened)\n"
                "        and token.holding.tokens.get(token.offset, None if token.released else "
                "token) is token\n",
                "",
            ),
        ),
        ("test_settle.py::test_a_settle_after_a_newer_delivery_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "what was given back is another delivery than that before it",
        GROUPS,
        ALL,
        (
            Edit(
                "subscriber/holding.py",
                "        and (known.attempts, known.reopened) == (token.attempt, token.reopened)\n",
                "        and known.attempts == token.attempt\n",
            ),
        ),
        ("test_fences.py::test_what_was_given_back_is_not_settled_by_whoever_had_it_before",),
    ),
    Mutant(
        "in strict order, a message waits until the one before is settled",
        GROUPS,
        ALL,
        (
            Edit(
                "subscriber/holding.py",
                "return self.only_next(ranges, now) if strict else ranges",
                "return ranges",
            ),
        ),
        ("test_redelivery.py::test_strict_delivers_one_message_of_a_key_at_a_time",),
    ),
)

COLLECTING = (
    Mutant(
        "retention leaves what was given back since then",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "for part in around(span, wanted.get(span.partition_id, ()))]",
                "for part in around(span, ())]",
            ),
        ),
        ("test_gc.py::test_what_was_given_back_is_as_old_as_that",),
    ),
    Mutant(
        "what is collected was acked by the group that is furthest behind",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "SELECT p.id, p.first_offset, MIN(COALESCE(",
                "SELECT p.id, p.first_offset, MAX(COALESCE(",
            ),
            Edit("store/retention.py", "HAVING MIN(COALESCE(", "HAVING MAX(COALESCE("),
        ),
        ("test_gc.py::test_what_every_group_has_acked_goes",),
    ),
    Mutant(
        "a group that has no place yet stands at the beginning",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "LEFT JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id\n"
                "    WHERE p.topic = ? <these>",
                "JOIN {offsets} o ON o.group_id = g.id AND o.partition_id = p.id\n"
                "    WHERE p.topic = ? <these>",
            ),
        ),
        (
            "test_gc.py::test_a_group_that_never_subscribed_keeps_all",
            "test_gc.py::test_a_group_that_was_down_keeps_new_partitions",
        ),
    ),
    Mutant(
        "the topic's lock keeps out whoever could want a message back",
        GROUPS,
        SERVERS,
        (
            Edit(
                "store/groups.py",
                'LOCK_TOPIC = "SELECT topic FROM {topics} WHERE topic = ? {for_update}"',
                'LOCK_TOPIC = "SELECT topic FROM {topics} WHERE topic = ?"',
            ),
        ),
        (
            "test_gc.py::test_a_seek_meanwhile_has_all_that_was_there",
            "test_gc.py::test_a_group_created_meanwhile_has_all_that_was_there",
            "test_gc.py::test_a_redrive_meanwhile_gives_back_what_was_given_up",
        ),
    ),
    Mutant(
        "it is asked again, under the locks, whether messages may go",
        GROUPS,
        SERVERS,
        (
            Edit(
                "store/retention.py",
                "span._replace(last=min(span.last, floors.get(span.partition_id, 0))) "
                "for span in locked",
                "span for span in locked",
            ),
        ),
        ("test_gc.py::test_a_seek_meanwhile_has_all_that_was_there",),
    ),
    Mutant(
        "a log is shortened under the lock of its counter",
        GROUPS,
        SERVERS,
        (
            Edit(
                "store/retention.py",
                "locked = yield from self.lock(spans, patient=False)\n        floors",
                "locked = list(spans)\n        floors",
            ),
        ),
        ("test_gc.py::test_an_open_publish_does_not_fail_the_collection",),
    ),
)

ISOLATED = (
    Mutant(
        "a seek moves the group that is named",
        GROUPS,
        ALL,
        (
            Edit(
                "store/seeking.py",
                'keys = ("group_id", "partition_id")',
                'keys = ("partition_id",)',
            ),
        ),
        ("test_seek.py::test_other_groups_and_topics_stay",),
    ),
    Mutant(
        "a redrive takes the letters of the group that is named",
        GROUPS,
        ALL,
        (
            Edit(
                "store/letters.py",
                'where += " AND d.consumer_group = ?"',
                'where += " AND (d.consumer_group = ? OR 1 = 1)"',
            ),
        ),
        ("test_dead_letters.py::test_the_same_message_given_up_by_two_groups",),
    ),
    Mutant(
        "a handle is of a letter of one time",
        GROUPS,
        ALL,
        (
            Edit(
                "store/letters.py",
                "source, tuple(HANDLE))",
                "source, tuple(HANDLE)[:2])",
            ),
        ),
        ("test_picking_letters.py::test_a_letter_at_the_same_place_of_another_time_is_another",),
    ),
    Mutant(
        "a handle is of one letter of its partition",
        GROUPS,
        ALL,
        (
            Edit(
                "store/letters.py",
                "source, tuple(HANDLE))",
                'source, ("partition_id",))',
            ),
        ),
        ("test_picking_letters.py::test_what_failed_twice_has_two_handles",),
    ),
    Mutant(
        "letters are of the topic that is named",
        GROUPS,
        ALL,
        (
            Edit(
                "store/letters.py",
                'where = "d.origin_topic = ?"',
                'where = "(d.origin_topic = ? OR 1 = 1)"',
            ),
        ),
        ("test_picking_letters.py::test_a_handle_is_of_its_topic_and_its_group",),
    ),
    Mutant(
        "a letter gives back the headers that its message had",
        GROUPS,
        ALL,
        (
            Edit(
                "store/letters.py",
                "if name not in TOLD}",
                'if not name.startswith("rowmq-")}',
            ),
        ),
        ("test_dead_letters.py::test_headers_that_only_look_like_ours_are_the_messages_own",),
    ),
    Mutant(
        "what was given back is kept until its group has acked it",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "WHERE g.topic = p.topic AND o.offset_acked < m.message_offset",
                "WHERE g.topic = p.topic AND o.offset_acked < 0",
            ),
        ),
        ("test_dead_letters.py::test_what_was_given_back_is_kept_until_it_is_acked",),
    ),
    Mutant(
        "the place of who keeps its own books only moves forward",
        GROUPS,
        ALL,
        (Edit("store/positions.py", 'forward = "t.offset_acked < w.acked"', 'forward = "1 = 1"'),),
        ("test_positions.py::test_a_place_only_moves_forward",),
    ),
)

GIVEN_BACK = (
    Mutant(
        "what others write to a place is not taken for a write of its owner",
        GROUPS,
        ALL,
        (
            Edit(
                "store/leases.py",
                '"t.version + 2"',
                '"t.version + 1"',
            ),
        ),
        (
            "test_fences.py::test_of_two_who_settle_one_delivery_differently_one_is_told_that_it_has",
        ),
    ),
    Mutant(
        "what was given back is not as old as the log",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "progress.skip_to(span.last + 1, since=span.first)",
                "progress.skip_to(span.last + 1)",
            ),
        ),
        (
            "test_rewriting.py::test_the_retention_of_what_is_older_leaves_it_alone",
            "test_rewriting.py::test_what_is_in_flight_can_be_settled_after_the_retention",
        ),
    ),
    Mutant(
        "a log that is emptied keeps room for what was given back",
        GROUPS,
        ALL,
        (
            Edit(
                "store/retention.py",
                "AND NOT EXISTS (SELECT 1 FROM {messages} m WHERE m.partition_id = ?)",
                "AND ? > 0",
            ),
        ),
        ("test_rewriting.py::test_the_retention_of_what_is_older_leaves_it_alone",),
    ),
    Mutant(
        "a letter is given back, edited, where there is room for it",
        GROUPS,
        ALL,
        (
            Edit(
                "store/rewriting.py",
                "if largest < len(edit.data):",
                "if False:",
            ),
        ),
        ("test_rewriting.py::test_a_log_that_is_emptied_before_it_is_given_back_has_room_for_it",),
    ),
)

GUARDS = (*LEASES, *COLLECTING, *ISOLATED, *GIVEN_BACK)
