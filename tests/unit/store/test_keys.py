"""Stored keys: shards stand for no key, and no key can be taken for one."""

import uuid
from collections import Counter
from typing import Any

import pytest

from rowmq.errors import InvalidKey, InvalidOption
from rowmq.message import new_id, new_ids
from rowmq.naming import check_key
from rowmq.store.keys import (
    KEYLESS,
    SHARD_KEYS,
    SHARDS,
    chosen_key,
    described,
    id_within,
    key_of,
    of_partitions,
    place_of,
    shard_key,
    shard_of,
    stored_key,
)


def test_shards_sort_by_their_number_and_before_every_key() -> None:
    keys = ["\x02", "\t", " ", "0", "a", "😀"]
    assert sorted([*keys, *reversed(SHARD_KEYS)])[:SHARDS] == list(SHARD_KEYS)


@pytest.mark.parametrize("stored", SHARD_KEYS)
def test_no_key_can_be_taken_for_a_shard(stored: str) -> None:
    for key in (stored, stored + "x", "\x01"):
        with pytest.raises(InvalidKey, match=r"U\+0001"):
            check_key(key)


def test_key_and_shard_tell_what_is_stored() -> None:
    for number, stored in enumerate(SHARD_KEYS):
        assert place_of(stored) == (key_of(stored), shard_of(stored)) == (None, number)
        assert stored_key((None, number)) == stored
        assert described(stored) == f"None, shard {number}"
    assert place_of("a") == (key_of("a"), shard_of("a")) == ("a", 0)
    assert stored_key("a") == stored_key(("a", 0)) == "a"
    assert stored_key(None) == KEYLESS
    assert (chosen_key(None), chosen_key("a"), chosen_key((None, 3))) == (None, "a", SHARD_KEYS[3])
    assert described("a") == "'a'"


def test_the_shard_of_an_id_is_the_same_in_every_version() -> None:
    """Otherwise a publish that is repeated after an update would not be found."""
    version_7, version_4 = (
        "01a1e49e-3dbc-7623-9d4f-5df1b7aa389d",
        "01a1e49e-3dbc-4623-9d4f-5df1b7aa389d",
    )
    ids = ["a", "b", "order-7", "é😀", version_7, f"{version_7}-17", version_7.upper(), version_4]
    assert [shard_of(shard_key(id)) for id in ids] == [3, 1, 2, 6, 5, 5, 5, 1]


def test_an_id_is_made_for_a_shard() -> None:
    for stored in SHARD_KEYS:
        made = new_id()
        id = id_within(stored, made)
        assert shard_key(id) == shard_key(f"{id}-{made}") == stored
        assert id[:-1] == made[:-1]
        assert uuid.UUID(id).version == 7


@pytest.mark.parametrize("pattern", ["{}", "order-{}", "2026-01-31T12:00:{:02}", "{:032x}", "uuid"])
def test_ids_are_spread_evenly(pattern: str) -> None:
    made = new_ids(8_000)
    ids = made if pattern == "uuid" else [pattern.format(number) for number in range(8_000)]
    counts = Counter(map(shard_key, ids))
    assert len(counts) == SHARDS
    assert max(counts.values()) < 1_300


@pytest.mark.parametrize(
    "key", [(None, SHARDS), (None, -1), (None, True), (None, "1"), ("a", 1), (None,), (None, 1, 2)]
)
def test_what_is_no_partition_is_refused(key: Any) -> None:
    with pytest.raises(InvalidOption, match="partition"):
        stored_key(key)


def test_what_is_said_of_all_shards_is_said_of_each() -> None:
    known = ["a", SHARD_KEYS[2], SHARD_KEYS[5]]
    assert of_partitions("t", {KEYLESS: -1, "a": 3}, known) == {
        SHARD_KEYS[2]: -1,
        SHARD_KEYS[5]: -1,
        "a": 3,
    }
    named = {KEYLESS: -2, SHARD_KEYS[5]: 7}
    assert of_partitions("t", named, known) == {SHARD_KEYS[2]: -2, SHARD_KEYS[5]: 7}


def test_an_offset_of_no_key_is_one_of_the_only_shard() -> None:
    assert of_partitions("t", {KEYLESS: 4}, ["a", SHARD_KEYS[6]]) == {SHARD_KEYS[6]: 4}
    with pytest.raises(InvalidOption, match=r"give one for each of \(None, 2\), \(None, 6\)$"):
        of_partitions("t", {KEYLESS: 4}, [SHARD_KEYS[6], SHARD_KEYS[2]])
    with pytest.raises(InvalidOption, match=r'give one for each of "\\u00012", "\\u00016"$'):
        of_partitions("t", {KEYLESS: 4}, [SHARD_KEYS[6], SHARD_KEYS[2]], in_json=True)
    with pytest.raises(InvalidOption, match="no messages with the key None"):
        of_partitions("t", {KEYLESS: 4}, ["a"])
