"""The guards against what others write: into names, payloads, headers, errors and URLs."""

from tests.mutants.mutant import ALL, NONE, Area, Edit, Mutant

__all__ = ["GUARDS"]

NAMES = Area("names", "unit/test_naming.py::test_any_short_unicode_is_a_name")
PAYLOADS = Area("payloads", "unit/test_codec.py::test_text_comes_back_equal")
SAYING = Area("what is said", "unit/test_quoting.py::test_what_is_plainly_visible_stays")
COMMANDS = Area("commands", "unit/cli/test_showing.py::test_what_is_harmless_is_shown_as_it_is")
URLS = Area("URLs", "unit/test_engine.py::test_mysql_urls_become_options")
TOPICS = Area("topics", "test_publish.py::test_offsets_start_at_one_and_have_no_gaps")
QUEUES = Area("queues", "test_queue_settle.py::test_an_acked_job_is_completed")
SCHEDULES = Area(
    "schedules", "test_schedules.py::test_a_tick_is_made_when_it_is_due_and_not_before"
)

STEPWISE = ("sqlite", "mariadb")

IDENTIFIERS = (
    Mutant(
        "only plain characters become a part of SQL",
        NAMES,
        NONE,
        (
            Edit(
                "naming.py",
                "if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):",
                "if not isinstance(name, str):",
            ),
        ),
        (
            "unit/test_naming.py::test_whatever_could_be_sql_is_no_identifier",
            "fuzz/test_urls.py::test_a_prefix_and_a_schema_are_plain_or_refused",
        ),
    ),
    Mutant(
        "a name has no character that databases cannot store",
        NAMES,
        NONE,
        (Edit("naming.py", 'if "\\0" in value:', "if False:"),),
        ("unit/test_naming.py::test_nul_is_refused",),
    ),
    Mutant(
        "no key is taken for what stands for none",
        NAMES,
        NONE,
        (Edit("naming.py", "if checked[0] == SHARD_MARK:", "if False:"),),
        ("unit/store/test_keys.py::test_no_key_can_be_taken_for_a_shard",),
    ),
    Mutant(
        "a name is compared, and is no pattern: groups",
        TOPICS,
        ALL,
        (
            Edit(
                "store/groups.py",
                'WHERE topic = ? AND consumer_group = ?"\n\nFIND_AND_KEEP',
                "WHERE topic = ? AND consumer_group LIKE ? ESCAPE '!'\"\n\nFIND_AND_KEEP",
            ),
        ),
        ("test_groups.py::test_names_of_groups_are_exact",),
    ),
    Mutant(
        "a name is compared, and is no pattern: keys of jobs",
        QUEUES,
        ALL,
        (Edit("store/jobs.py", "AND k.job_key = ?", "AND k.job_key LIKE ? ESCAPE '!'"),),
        ("test_queue_input.py::test_odd_keys_of_one_queue_are_apart",),
    ),
    Mutant(
        "a name is compared, and is no pattern: prefixes of ticks",
        SCHEDULES,
        ALL,
        (
            Edit(
                "store/ticks.py",
                "WHERE t.queue = ? AND t.name = ? AND t.fire_at > ?",
                "WHERE t.queue = ? AND t.name LIKE ? ESCAPE '!' AND t.fire_at > ?",
            ),
        ),
        ("test_schedules_ticks.py::test_a_prefix_or_a_hash_is_taken_for_no_other",),
    ),
)

LIMITS = (
    Mutant(
        "headers have a limit together",
        NAMES,
        NONE,
        (Edit("naming.py", "if size > HEADERS_BYTES_MAX:", "if size > HEADERS_BYTES_MAX * 9:"),),
        (
            "unit/test_naming.py::test_headers_have_a_limit_together",
            "fuzz/test_codecs.py::test_headers_come_back_or_are_refused",
        ),
    ),
    Mutant(
        "a payload is no larger than its topic takes",
        TOPICS,
        STEPWISE,
        (Edit("store/entries.py", "if len(entry.data) > limit:", "if False:"),),
        ("test_publish.py::test_a_payload_at_the_limit_passes_and_one_byte_more_does_not",),
    ),
    Mutant(
        "a payload is no larger than its topic takes",
        TOPICS,
        ("postgres",),
        (Edit("store/postgres.py", "WHERE v.largest > COALESCE(", "WHERE 0 > COALESCE("),),
        ("test_publish.py::test_a_payload_at_the_limit_passes_and_one_byte_more_does_not",),
    ),
    Mutant(
        "a payload is no larger than its queue takes",
        QUEUES,
        STEPWISE,
        (Edit("store/postings.py", "if len(posting.data) > limit:", "if False:"),),
        ("test_queue_input.py::test_payloads_over_the_limit",),
    ),
    Mutant(
        "a payload is no larger than its queue takes",
        QUEUES,
        ("postgres",),
        (
            Edit(
                "store/postgres_jobs.py",
                "WHERE m.largest > m.payload_bytes_max",
                "WHERE 0 > m.payload_bytes_max",
            ),
        ),
        ("test_queue_input.py::test_payloads_over_the_limit",),
    ),
)

BOMBS = (
    Mutant(
        "a payload is not nested deeper than every reader can follow",
        PAYLOADS,
        NONE,
        (
            Edit(
                "codec.py",
                "    if left:\n        raise ValueError(",
                "    if False:\n        raise ValueError(",
            ),
        ),
        ("unit/test_codec.py::test_json_that_is_nested_too_deep_is_refused",),
    ),
    Mutant(
        "a number that JSON has no form for is not lost",
        PAYLOADS,
        NONE,
        (Edit("codec.py", 'if b"null" in data:', "if False:"),),
        ("unit/test_codec.py::test_numbers_that_json_would_lose_are_refused",),
    ),
    Mutant(
        "no two keys of an object become one",
        PAYLOADS,
        NONE,
        (Edit("codec.py", "if _NUMBER_KEY.search(data):", "if False:"),),
        ("unit/test_codec.py::test_keys_that_would_become_one_are_refused",),
    ),
    Mutant(
        "an encoding that is not known is not guessed at",
        PAYLOADS,
        NONE,
        (Edit("codec.py", "if encoding not in _ENCODINGS:", "if encoding < 0:"),),
        ("unit/test_codec.py::test_an_unknown_encoding_is_never_guessed_at",),
    ),
    Mutant(
        "an error is no longer than is kept of it",
        PAYLOADS,
        NONE,
        (Edit("codec.py", "text = text[:ERROR_CHARS_MAX].replace", "text = text.replace"),),
        ("fuzz/test_codecs.py::test_an_error_is_text_that_every_database_stores",),
    ),
    Mutant(
        "nothing makes objects of bytes",
        PAYLOADS,
        NONE,
        (Edit("codec.py", "import math\n", "import math\nimport pickle\n"),),
        ("fuzz/test_no_pickle.py::test_no_file_imports_what_makes_objects_of_bytes",),
    ),
)

INJECTIONS = (
    Mutant(
        "what others chose is quoted in one line",
        SAYING,
        NONE,
        (Edit("quoting.py", "return visible(text[:CHARS_MAX]", "return str(text[:CHARS_MAX]"),),
        (
            "unit/test_quoting.py::test_a_value_is_quoted_in_one_line",
            "fuzz/test_codecs.py::test_anything_can_be_quoted",
        ),
    ),
    Mutant(
        "what others say is told in one line",
        SAYING,
        NONE,
        (Edit("codec.py", "said = in_line(said_by(error))", "said = said_by(error)"),),
        ("unit/test_codec.py::test_what_does_not_parse_is_told_in_a_line",),
    ),
    Mutant(
        "a log tells everything in one line",
        SAYING,
        NONE,
        (Edit("__init__.py", "\nkeep_in_line()\n", "\n"),),
        ("fuzz/test_logs.py::test_a_log_of_anything_is_one_line",),
    ),
    Mutant(
        "nothing in a table acts on a terminal",
        COMMANDS,
        NONE,
        (
            Edit(
                "cli/showing.py",
                "Text(visible(value[:CELL_CHARS_MAX]) +",
                "Text(value[:CELL_CHARS_MAX] +",
            ),
        ),
        ("unit/cli/test_terminal.py::test_no_name_payload_or_error_acts_on_a_terminal",),
    ),
    Mutant(
        "nothing in an error acts on a terminal",
        COMMANDS,
        NONE,
        (Edit("cli/failing.py", 'visible(f"{called}{message}")', 'f"{called}{message}"'),),
        ("unit/cli/test_main.py::test_no_error_acts_on_a_terminal",),
    ),
    Mutant(
        "nothing in JSON acts on a terminal",
        COMMANDS,
        NONE,
        (Edit("cli/showing.py", "char if char.isprintable() else json_escape(char)", "char"),),
        (
            "unit/cli/test_showing.py::test_json_for_programs_is_what_was_given_and_acts_on_no_terminal",
        ),
    ),
)

SECRETS = (
    Mutant(
        "Python's own words about a URL are not passed on",
        URLS,
        NONE,
        (
            Edit(
                "engine.py",
                'UNREADABLE_PATH if database == "sqlite" else UNREADABLE) from None',
                'UNREADABLE_PATH if database == "sqlite" else UNREADABLE)',
            ),
        ),
        ("unit/test_engine.py::test_no_message_and_no_traceback_shows_a_password",),
    ),
    Mutant(
        "a password is not repeated, wherever it was written",
        COMMANDS,
        NONE,
        (Edit("cli/failing.py", 'return IN_URL.sub(r"\\1***@", text)', "return text"),),
        ("unit/cli/test_main.py::test_a_password_is_not_repeated_wherever_it_was_written",),
    ),
)

GUARDS = (*IDENTIFIERS, *LIMITS, *BOMBS, *INJECTIONS, *SECRETS)
