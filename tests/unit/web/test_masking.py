"""What is masked, and what is not; and that nothing else is changed by it."""

from typing import Any

import pytest

from rowmq.errors import InvalidOption
from rowmq.web.masking import DEFAULT_MASKS, MASKED, Mask, check_masks

CARD: dict[str, Any] = {
    "customer": {"cards": [{"number": "1", "kind": "x"}], "name": "Ann"},
    "n": 1,
}


@pytest.mark.parametrize(
    ("masks", "payload", "shown"),
    [
        (["field:password"], {"Password": "x", "a": [{"PASSWORD": 1}]},
         {"Password": MASKED, "a": [{"PASSWORD": MASKED}]}),
        (["field:*token*"], {"my_tokens": {"a": 1}}, {"my_tokens": MASKED}),
        (["path:customer.cards[*].number"], CARD,
         {"customer": {"cards": [{"number": MASKED, "kind": "x"}], "name": "Ann"}, "n": 1}),
        (["path:$.customer.cards[1].number"], CARD, CARD),
        (["path:[0]"], ["a", "b"], [MASKED, "b"]),
        (["path:*.name"], CARD, {**CARD, "customer": {**CARD["customer"], "name": MASKED}}),
        (["field:a"], '{"a": 1, "b": 2}', f'{{"a":"{MASKED}","b":2}}'),
        (["field:a"], b' [{"a": 1}]', f'[{{"a":"{MASKED}"}}]'.encode()),
        (["field:a"], '{"a": ', MASKED),
        (["field:a"], '{"b": ', '{"b": '),
        (["field:a"], b"\xff{", b"\xff{"),
        (["payload"], {"x": 1}, MASKED),
        ([], {"password": 1}, {"password": 1}),
        (["header:password"], {"password": 1}, {"password": 1}),
    ],
)  # fmt: skip
def test_payloads_are_shown_without_what_is_masked(
    masks: list[str], payload: Any, shown: Any
) -> None:
    mask = Mask(masks)
    assert mask.payload(payload) == shown
    assert mask.hides(payload) is (shown != payload)
    if shown == payload:
        assert mask.payload(payload) is payload


SECRET = "hunter2"


@pytest.mark.parametrize(
    "name",
    ["password", "userPassword", "PASSWORD_2", "apiKey", "api-key", "API_KEY", "accessToken",
     "access-token", "token", "idToken", "clientSecret", "private_key", "Authorization",
     "api key", "api.key", "user[api-key]", "user[access-token]", "user[token]", "user.token",
     "headers[Authorization]"],
)  # fmt: skip
def test_names_are_compared_without_case_and_joints(name: str) -> None:
    assert Mask(DEFAULT_MASKS).payload({name: SECRET, "b": 1}) == {name: MASKED, "b": 1}


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ({"body": '{"apiKey": "hunter2"}', "n": 1}, {"body": f'{{"apiKey":"{MASKED}"}}', "n": 1}),
        ({"body": ' [{"a": "{\\"token\\": \\"hunter2\\"}"}]'},
         {"body": f'[{{"a":"{{\\"token\\":\\"{MASKED}\\"}}"}}]'}),
        ({"body": '{"token": "hunter2",}'}, {"body": MASKED}),
        ({"body": "user=ann&password=hunter2"}, {"body": MASKED}),
        ({"body": "user=ann&pass%77ord=hunter2"}, {"body": MASKED}),
        ({"url": "https://x.example/?access_token=hunter2"}, {"url": MASKED}),
        ({"body": "<a><password>hunter2</password></a>"}, {"body": MASKED}),
        ({"body": "choose a password soon"}, {"body": "choose a password soon"}),
        ('{"password": "hunter2"}\n{"password": "hunter2"}\n', MASKED),
        ('{"a": {"password": "hunter2"}, "a": 1}', MASKED),
        ('{"a": {"p\\u0061ssword": "hunter2"}, "a": 1}', MASKED),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        ('\ufeff{"password": "hunter2"}', MASKED),
        (b'\xef\xbb\xbf{"password": "hunter2"}', MASKED),
        ('{"password": "hunter2",}', MASKED),
        ('{"n": NaN, "password": "hunter2"}', MASKED),
        ('{"n": 1' + "0" * 5_000 + ', "password": "hunter2"}', MASKED),
        ('{"a": "\\ud800", "password": "hunter2"}', MASKED),
        ('{"password": "hunter2"', MASKED),
        ("user=ann&client_secret=hunter2", MASKED),
        (b"\x00\xff password\x00hunter2", MASKED),
        (b"user\x00authorization\x00hunter2", MASKED),
        ('{"raw": "GET /\\r\\nAuthorization: hunter2', MASKED),
        ('{"raw": "{\\"raw\\":\\"GET /\\\\r\\\\nAuthorization: hunter2', MASKED),
        ("C:\\new\\token=hunter2", MASKED),
        ('{"api key": "hunter2"', MASKED),
        ('{"password": "hunter2"}'.encode("utf-16"), MASKED),
        ("Dear Ann,\n\nyour parcel is on its way.", "Dear Ann,\n\nyour parcel is on its way."),
        (bytes(range(256)), bytes(range(256))),
    ],
)  # fmt: skip
def test_what_cannot_be_read_for_certain_is_hidden_if_a_field_may_be_in_it(
    payload: Any, shown: Any
) -> None:
    mask = Mask(DEFAULT_MASKS)
    assert mask.payload(payload) == shown
    assert SECRET not in str(shown)
    assert mask.hides(payload) is (shown != payload)


@pytest.mark.parametrize(
    ("masks", "payload", "shown"),
    [
        (["path:a.b"], {"a": '{"b": 1, "c": 2}'}, {"a": f'{{"b":"{MASKED}","c":2}}'}),
        (["path:a.b"], '{"a": {"b": 1},}', MASKED),
        (["path:a.b"], '{"a": 1,}', '{"a": 1,}'),
        (["path:[0]"], "[1, 2,]", MASKED),
        (["path:[0]"], "1, 2", "1, 2"),
        (["path:fullName"], {"full_name": 1}, {"full_name": MASKED}),
        (["field:card[_-]no"], {"card_no": 1, "cardno": 1}, {"card_no": MASKED, "cardno": 1}),
        (["field:a?c"], "x abc", MASKED),
        (["field:a*c"], "x a.b.c", MASKED),
        (["field:b"], "x abc", "x abc"),
        (["field:straße"], "Straße=1".encode(), MASKED),
    ],
)
def test_rules_reach_into_text(masks: list[str], payload: Any, shown: Any) -> None:
    assert Mask(masks).payload(payload) == shown


def test_a_beginning_is_hidden_by_what_may_be_in_it() -> None:
    mask = Mask(DEFAULT_MASKS)
    assert mask.beginning('{"a": 1, "pass') == '{"a": 1, "pass'
    assert mask.beginning(b'{"a": 1, "password": "hun') == MASKED
    assert Mask(["payload"]).beginning("x") == MASKED
    assert Mask(["path:[0]"]).beginning("[1, 2") == MASKED


@pytest.mark.parametrize("payload", ["\\" * 2_000_000, {"[" * 2_000_000: 1}], ids=["codes", "name"])
def test_no_text_takes_its_length_by_its_length_to_look_into(payload: Any) -> None:
    """If it did, these would take hours, during which nobody else would be answered."""
    assert Mask(DEFAULT_MASKS).payload(payload) is payload


def test_nothing_is_looked_for_by_a_header_that_is_masked() -> None:
    mask = Mask(DEFAULT_MASKS)
    assert mask.sought({"tenant": "a"}) == {"tenant": "a"}
    assert mask.sought(None) is None
    for name in ("Authorization", "proxy-authorization", "x_api_key"):
        with pytest.raises(InvalidOption, match="is masked here"):
            mask.sought({name: "x"})


def test_what_is_masked_is_a_copy() -> None:
    payload = {"password": "x", "others": [1, 2]}
    Mask(DEFAULT_MASKS).payload(payload)
    assert payload == {"password": "x", "others": [1, 2]}


def test_headers_are_masked_by_name() -> None:
    headers = {"Authorization": "x", "X-Api-Key": "y", "trace": "z", "Set-Cookie": "c"}
    shown = Mask(DEFAULT_MASKS).headers(headers)
    assert shown == {"Authorization": MASKED, "X-Api-Key": MASKED, "trace": "z",
                     "Set-Cookie": MASKED}  # fmt: skip
    plain = {"trace": "z"}
    assert Mask(DEFAULT_MASKS).headers(plain) is plain


def test_depths_that_nobody_reads_are_hidden_rather_than_shown() -> None:
    deep: Any = {"password": "x"}
    for _ in range(500):
        deep = [deep]
    assert '"x"' not in str(Mask(["field:password"]).payload(deep)).replace("'", '"')


@pytest.mark.parametrize(
    "mask", ["", "field", "field:", "payload:x", "header", "body:x", "path:", "path:$", "path:a[x]"]
)
def test_a_rule_that_means_nothing_is_refused(mask: str) -> None:
    with pytest.raises(InvalidOption):
        check_masks([mask])
