"""The guards of queues: locks and their tokens, keys, lines, limits, and repeated operations."""

from tests.mutants.mutant import ALL, SERVERS, Area, Edit, Mutant

__all__ = ["GUARDS"]

STEPWISE = ("sqlite", "mariadb")

QUEUES = Area("queues", "test_queue_settle.py::test_an_acked_job_is_completed")

CLAIMS = (
    Mutant(
        "jobs that somebody is taking are passed over",
        QUEUES,
        ("mariadb",),
        (Edit("store/claims.py", 'locks_ready = "{skip_locked}"', 'locks_ready = ""'),),
        (
            "test_queue_claim.py::test_claimers_never_share_a_job",
            "test_queue_claim.py::test_a_claim_passes_over_what_somebody_else_is_taking",
        ),
    ),
    Mutant(
        "jobs that somebody is taking are passed over",
        QUEUES,
        ("postgres",),
        (
            Edit(
                "store/postgres_jobs.py",
                "LIMIT <most> FOR UPDATE SKIP LOCKED\n        ) first",
                "LIMIT <most> FOR UPDATE\n        ) first",
            ),
        ),
        ("test_queue_claim.py::test_a_claim_passes_over_what_somebody_else_is_taking",),
    ),
    Mutant(
        "a lock that gave its jobs back is void: its token settles nothing",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                'UNLOCK = "DELETE FROM {locks} WHERE token = ?"',
                f'UNLOCK = "UPDATE {{locks}} SET locked_until = {2**62} WHERE token = ?"',
            ),
        ),
        (
            "test_queue_settle.py::test_a_settle_is_stale_once_the_job_was_given_back",
            "test_queue_settle.py::test_a_stale_settle_is_refused_and_changes_nothing",
        ),
    ),
    Mutant(
        "only locks whose time is over give jobs back",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                "FROM {locks} WHERE locked_until <= (SELECT {now})",
                "FROM {locks} WHERE locked_until > 0",
            ),
        ),
        ("test_fences.py::test_only_the_lock_that_has_expired_gives_its_job_back",),
    ),
    Mutant(
        "an expired lock is given back by one, and not while it is being settled",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/claims.py",
                "    ORDER BY locked_until LIMIT ? {skip_locked}",
                "    ORDER BY locked_until LIMIT ?",
            ),
        ),
        (
            (
                "test_queue_transactions.py"
                "::test_a_lock_that_expires_in_an_open_transaction_is_not_doubled"
            ),
        ),
    ),
    Mutant(
        "an expired lock gives back only what was not settled",
        QUEUES,
        ALL,
        (Edit("store/claims.py", 'if marks[place] == "0"}', "}"),),
        ("test_queue_claim.py::test_only_the_unsettled_jobs_of_a_batch_come_back",),
    ),
    Mutant(
        "a job whose key is locked stays in its expired lock",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/claims.py",
                "if place in keys and keys[place] in locked:",
                "if False:",
            ),
        ),
        ("test_fences.py::test_an_expired_job_whose_key_is_locked_is_not_lost",),
    ),
    Mutant(
        "a claim that is repeated finds its own lock",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/claims.py",
                "if again and (jobs := (yield from self.load(token))) is not None:",
                "if False and (jobs := (yield from self.load(token))) is not None:",
            ),
        ),
        ("test_queue_settle.py::test_a_claim_whose_answer_is_lost_gives_the_same_jobs",),
    ),
    Mutant(
        "a claim that is repeated has nothing that was taken from it",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                'return [job for job in jobs if marks[job.position] == "0"]',
                "return [job for job in jobs if marks]",
            ),
        ),
        (
            "test_queue_claim.py::test_a_claim_that_is_repeated_has_nothing_that_people_took_from_it",
        ),
    ),
)

SETTLES = (
    Mutant(
        "a second settle of a job is refused",
        QUEUES,
        ALL,
        (
            Edit(
                "store/settles.py",
                'return refused(settle) if held.settled[settle.position] == "1" else None',
                "return None",
            ),
        ),
        ("test_fences.py::test_a_job_that_was_settled_in_a_transaction_is_not_settled_again",),
    ),
    Mutant(
        "a second ack of a job is left out",
        QUEUES,
        ("postgres",),
        (
            Edit(
                "store/postgres_jobs.py",
                "~ k.settled::varbit & m.mask AS acked",
                "m.mask AS acked",
            ),
        ),
        ("test_fences.py::test_a_job_that_was_settled_in_a_transaction_is_not_settled_again",),
    ),
    Mutant(
        "a lock's row is locked by who settles its jobs",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/settles.py",
                "ON l.token = w.token\n    ORDER BY l.token {for_update}",
                "ON l.token = w.token\n    ORDER BY l.token",
            ),
        ),
        ("test_fences.py::test_two_who_settle_jobs_of_one_lock_at_once_forget_neither",),
    ),
    Mutant(
        "a lock's row is locked by who acks its jobs",
        QUEUES,
        ("postgres",),
        (
            Edit(
                "store/postgres_jobs.py",
                "FROM {locks} k WHERE k.token = w.token FOR UPDATE",
                "FROM {locks} k WHERE k.token = w.token",
            ),
        ),
        ("test_queue_settle.py::test_a_batch_is_acked_bit_by_bit_from_everywhere_at_once",),
    ),
    Mutant(
        "a job that was updated or dropped cannot be settled",
        QUEUES,
        ALL,
        (
            Edit(
                "store/settles.py",
                "if not is_of(keys.get(settle.identity), settle.entry.job_id):",
                "if keys.get(settle.identity) is None:",
            ),
        ),
        ("test_queue_offer.py::test_an_update_makes_the_lock_void",),
    ),
    Mutant(
        "a settle that is repeated is not refused for having been done",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/settles.py",
                "        if again:\n            yield from self.forgive(settles, outcomes)\n",
                "",
            ),
        ),
        ("test_queue_settle.py::test_a_settle_whose_answer_is_lost_is_done_once_and_not_refused",),
    ),
    Mutant(
        "a settle that is repeated is refused if it was not done",
        QUEUES,
        SERVERS,
        (Edit("store/settles.py", "done = yield from self.is_done(settle)", "done = True"),),
        (
            (
                "test_queue_settle.py"
                "::test_a_settle_that_may_have_been_done_is_still_refused_if_it_was_not"
            ),
        ),
    ),
)

PUTS = (
    Mutant(
        "a put or a settle in a caller's transaction takes SQLite's write lock before it reads",
        QUEUES,
        ("sqlite",),
        (Edit("store/queues.py", "if relaxed or not alone:", "if relaxed:"),),
        ("test_guards.py::test_a_callers_plain_begin_takes_the_write_lock_before_jobs_are_read",),
    ),
    Mutant(
        "a put that is repeated finds its own jobs",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/jobs.py",
                "if again and (known := (yield from self.due_times(ids))):",
                "if False and (known := (yield from self.due_times(ids))):",
            ),
        ),
        ("test_queue_offer.py::test_a_put_whose_answer_is_lost_doubles_nothing",),
    ),
    Mutant(
        "an offer that is repeated has its first outcome",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/jobs.py",
                "if memo and (yield from self.due_times(ids)):",
                "if False and (yield from self.due_times(ids)):",
            ),
        ),
        ("test_queue_offer.py::test_an_offer_whose_answer_is_lost_has_its_outcome",),
    ),
    Mutant(
        "a key that has a live job is taken",
        QUEUES,
        ALL,
        (
            Edit(
                "store/jobs.py",
                "if any(held[p.key.identity] != p.key for p in places if p not in taken):",
                "if taken.clear():",
            ),
        ),
        ("test_queue_put.py::test_a_key_has_one_live_job",),
    ),
    Mutant(
        "who offers a key locks it",
        QUEUES,
        ("mariadb",),
        (
            Edit(
                "store/jobs.py",
                '"{skip_locked}" if skip else "{for_update}"',
                '"{skip_locked}" if skip else ""',
            ),
        ),
        (
            "test_queue_offer.py::test_an_offer_waits_for_who_has_the_key",
            "test_queue_offer.py::test_many_offers_of_one_new_key_create_one_job",
            "test_queue_offer.py::test_offers_while_workers_claim_and_settle",
        ),
    ),
    Mutant(
        "who joins a line, and who ends its head, locks it",
        QUEUES,
        ("postgres",),  # elsewhere, what is read and written next locks it as well
        (
            Edit(
                "store/lines.py",
                "ORDER BY l.queue_id, l.ordering_key {for_update}",
                "ORDER BY l.queue_id, l.ordering_key",
            ),
        ),
        (
            "test_queue_lines.py::test_a_head_that_finishes_does_not_lose_who_is_just_joining",
            "test_queue_lines.py::test_who_joins_while_the_head_is_being_finished_is_not_lost",
        ),
    ),
    Mutant(
        "who puts into a line comes behind those who did so within a tick of the clock",
        QUEUES,
        ("sqlite",),  # the clocks of others have microseconds
        (
            Edit(
                "store/sqlite.py",
                "(*values, *values))).rows:",
                "(*values, *values))).rows and False:",
            ),
        ),
        (
            "test_queue_lines.py::test_a_line_is_in_the_order_of_puts_of_several_clients",
            "test_queue_lines.py::test_a_line_is_in_the_order_of_puts_while_the_clock_stands_still",
        ),
    ),
    Mutant(
        "a head that was claimed before stays in front",
        QUEUES,
        ALL,
        (Edit("store/lines.py", "AND job_id = ? AND deliveries = 0 ", "AND job_id = ? "),),
        ("test_fences.py::test_nobody_gets_in_front_of_a_head_whose_lock_has_expired",),
    ),
)

TIMES = (
    Mutant(
        "a delay begins at the database's time, however this machine's clock is set",
        QUEUES,
        STEPWISE,  # elsewhere, no time is ever on its way between the two
        (
            Edit(
                "store/jobs.py",
                "now + p.delay_us if p.at is None else p.at, now)",
                # In milliseconds, as SQLite's clock: what is due now is so on the right clock, too.
                '__import__("time").time_ns() // 10**6 * 1000 + p.delay_us if p.at is None '
                "else p.at, now)",
            ),
        ),
        (
            (
                "test_queue_regressions.py"
                "::test_weakness_05_a_wrong_clock_steals_no_lock_and_claims_nothing_early"
            ),
        ),
    ),
    Mutant(
        "an extension makes no lock shorter",
        QUEUES,
        ALL,
        (
            Edit(
                "store/settles.py",
                "WHERE token = ? AND locked_until < ?",
                "WHERE token = ? AND (locked_until < ? OR 1 = 1)",
            ),
        ),
        ("test_queue_limits.py::test_an_extension_never_shortens_what_a_permit_is_for",),
    ),
    Mutant(
        "what is deleted from the archive is as old as was said",
        QUEUES,
        ALL,
        (
            Edit(
                "store/archive.py",
                "WHERE f.queue_id = ? AND f.finished_at <= ? <kinds>",
                "WHERE f.queue_id = ? AND (f.finished_at <= ? OR 1 = 1) <kinds>",
            ),
        ),
        ("test_queue_archive.py::test_prune_goes_by_age",),
    ),
)

LIMITS = (
    Mutant(
        "a queue that is paused gives nothing",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                "WHERE q.queue IN (<queues>) AND q.paused = 0",
                "WHERE q.queue IN (<queues>)",
            ),
        ),
        ("test_queue_limits.py::test_a_pause_stops_no_other_queue",),
    ),
    Mutant(
        "a permit of a rate is in use for the whole period",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                "(queue_id, RATE, number, now + found.period_us, 0, None)",
                "(queue_id, RATE, number, now, 0, None)",
            ),
        ),
        ("test_queue_limits.py::test_a_rate_is_kept_in_every_window",),
    ),
    Mutant(
        "a permit is used by one at a time",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/claims.py",
                "    ORDER BY p.free_at, p.number LIMIT ? {skip_locked}",
                "    ORDER BY p.free_at, p.number LIMIT ?",
            ),
        ),
        (
            (
                "test_queue_limits.py"
                "::test_sixteen_workers_of_two_clients_reach_the_limit_and_never_pass_it"
            ),
        ),
    ),
    Mutant(
        "a permit is in use while its lock is there, however old",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                "      AND (SELECT k.token FROM {locks} k WHERE k.token = p.token) IS NULL\n",
                "",
            ),
        ),
        (
            "test_queue_limits.py::test_an_extended_lock_keeps_its_permit",
            "test_queue_limits.py::test_extending_one_job_keeps_the_permits_of_all_in_its_lock",
        ),
    ),
    Mutant(
        "permits beyond a limit that was lowered are counted",
        QUEUES,
        ALL,
        (
            Edit(
                "store/claims.py",
                "        over = len(result)\n",
                "        over = 0 * len(result)\n",
            ),
        ),
        ("test_queue_limits.py::test_a_limit_may_be_changed_and_removed",),
    ),
    Mutant(
        "a settle frees the permit that is its own",
        QUEUES,
        ALL,
        (Edit("store/claims.py", '"t.token = w.held"', '"1 = 1"'),),
        ("test_fences.py::test_a_permit_that_others_use_by_now_is_not_freed",),
    ),
)

HOLDS = (
    Mutant(
        "a held job is locked by the transaction that has it",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/holds.py",
                'template.replace("<lock>", "{skip_locked}")',
                'template.replace("<lock>", "")',
            ),
        ),
        ("test_queue_hold.py::test_no_two_hold_the_same_job",),
    ),
    Mutant(
        "the start of a held job is noted, so that a death counts",
        QUEUES,
        SERVERS,
        (
            Edit(
                "store/holds.py",
                "yield from self._note(held.row.job_id, held.starts + 1)",
                "yield from self._note(held.row.job_id, held.starts)",
            ),
        ),
        ("test_queue_hold.py::test_deaths_are_counted_and_release_the_job_at_once",),
    ),
)

STEERING = (
    Mutant(
        "a job that was retried is told from what it was before: by receipts",
        QUEUES,
        ALL,
        (
            Edit(
                "store/receipts.py",
                "if jobs[receipt.job_id].due_at <= receipt.due_at]",
                "if receipt.job_id in jobs]",
            ),
        ),
        ("test_queue_receipts.py::test_who_was_late_is_told_so_of_a_job_that_was_retried",),
    ),
    Mutant(
        "a job that was retried is told from what it was before: by settles",
        QUEUES,
        ALL,
        (
            Edit(
                "store/settles.py",
                "if kept[0][0] > settle.entry.due_at:",
                "if False:",
            ),
            Edit(
                "store/settles.py",
                "AND j.due_at <= ? {as_now}",
                "AND (j.due_at <= ? OR 1 = 1) {as_now}",
            ),
        ),
        ("test_queue_receipts.py::test_who_was_late_is_told_so_of_a_job_that_was_retried",),
    ),
    Mutant(
        "a job that was retried is due at another time than before",
        QUEUES,
        ALL,
        (
            Edit(
                "store/archive.py",
                "yield from self.jobs.set_due([(job.id, now) for job in chosen])",
                "yield from ()",
            ),
        ),
        (
            "test_queue_finding.py::test_a_job_that_was_given_up_before_its_time_is_found_when_it_is_done",
            "test_queue_receipts.py::test_who_was_late_is_told_so_of_a_job_that_was_retried",
        ),
    ),
    Mutant(
        "what people did is counted if its answer was lost",
        QUEUES,
        ALL,
        (
            Edit(
                "queue/steering.py",
                "done |= yield from self._arrived(sorted(missing))",
                "yield from ()",
            ),
        ),
        ("test_queue_steering.py::test_what_is_repeated_tells_what_the_first_try_did",),
    ),
    Mutant(
        "what people did is counted only if it was done",
        QUEUES,
        ALL,
        (
            Edit(
                "queue/steering.py",
                "done |= yield from self._arrived(sorted(missing))",
                "done |= missing",
            ),
        ),
        ("test_queue_steering.py::test_a_repeat_counts_nothing_that_is_not_where_it_was_to_go",),
    ),
    Mutant(
        "a row that is deleted goes, also if it was updated meanwhile",
        QUEUES,
        ("postgres",),
        (
            Edit(
                "store/postgres.py",
                "if len(keys) == 1:",
                "if len(keys) == 0:",
            ),
        ),
        (
            "test_queue_steering.py::test_a_job_that_is_dropped_goes_though_its_row_is_being_changed",
        ),
    ),
)

GUARDS = (*CLAIMS, *SETTLES, *PUTS, *TIMES, *LIMITS, *HOLDS, *STEERING)
