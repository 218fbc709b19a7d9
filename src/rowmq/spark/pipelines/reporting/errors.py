r"""Errors that are alike: what differs from one failure to the next is taken out of their text.

The rules are regular expressions that mean the same to Java, where Spark applies them to every
failure, and to Python. So they name their characters: `\d`, `\s` and `\b` differ in what else
they take. What is left after the rules is compared once more, by Python, word by word.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

__all__ = ["NO_ERROR", "RULES", "merged", "normalised", "reason_of"]

NO_ERROR = "(no error was given)"

CHARS_MAX = 200
"""How much of an error tells it from others."""

VARIANTS_MIN = 4
"""How many errors must differ in one word only, for that word to be taken for a value."""

WORDS_MIN = 4
"""How many words an error must have for that: short ones differ in what matters."""

WORD = "<word>"


class Rule(NamedTuple):
    """What is replaced, and by what."""

    pattern: str
    by: str


HEX = "[0-9a-fA-F]"
BEFORE, AFTER = "(?<![0-9A-Za-z_])", "(?![0-9A-Za-z_])"
CODES = "".join(
    f"(?<!{word})"
    for word in ("HTTP ", "HTTP: ", "status ", "status: ", "code ", "rrno ", "STATE ")
)

RULES: Sequence[Rule] = (
    # Of a traceback, the last line that is not indented: the error itself.
    Rule(r"^Traceback \(most recent call last\):[\s\S]*\n(?=[^ \t\r\n])", ""),
    Rule(r"[ \t\r\n\f]+", " "),
    Rule(r"^ | $", ""),
    Rule(rf"{BEFORE}'[^']*'{AFTER}", "'…'"),
    Rule(rf'{BEFORE}"[^"]*"{AFTER}', '"…"'),
    Rule(rf"{BEFORE}`[^`]*`{AFTER}", "`…`"),
    Rule(r"[A-Za-z][A-Za-z0-9+.-]*://[^ '\"<>()]+", "<url>"),
    Rule(r"[0-9A-Za-z._%+-]+@[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)+", "<email>"),
    Rule(r"(?<![0-9A-Za-z_.<])(?:/[0-9A-Za-z_.@%+=~-]+)+/?", "<path>"),
    Rule(rf"{BEFORE}[A-Za-z]:\\[^ '\"<>]+", "<path>"),
    Rule(rf"{BEFORE}{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}{AFTER}", "<uuid>"),
    Rule(
        rf"{BEFORE}[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}"
        r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?",
        "<time>",
    ),
    Rule(rf"{BEFORE}0[xX]{HEX}+{AFTER}", "<hex>"),
    Rule(
        rf"{BEFORE}(?={HEX}*[a-fA-F])(?={HEX}*[0-9]){HEX}{{8,}}{AFTER}",
        "<hex>",
    ),
    # Codes stay: they are the reason.
    Rule(rf"(?<![0-9]){CODES}[0-9]+(?:[.,:][0-9]+)*", "<n>"),
)


def normalised(error: str | None) -> str:
    """The text of an error without what differs from one failure to the next."""
    text = error or ""
    for rule in RULES:
        text = re.sub(rule.pattern, rule.by, text)
    return text[:CHARS_MAX] or NO_ERROR


def reason_of(error: Column) -> Column:
    """The same, of a column: done by Spark."""
    text = F.coalesce(error, F.lit(""))
    for rule in RULES:
        text = F.regexp_replace(text, F.lit(rule.pattern), F.lit(rule.by))
    text = F.substring(text, 1, CHARS_MAX)
    return F.when(text == "", NO_ERROR).otherwise(text)


def merged(reasons: Iterable[str]) -> dict[str, str]:
    """What each reason is counted as: where several differ in one word only, that word is a value.

    "LookupError: no user ann", and the same of bob, eve and mel, are "LookupError: no user <word>".
    """
    result = {reason: reason for reason in reasons}
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for reason in result:
        words = reason.split(" ")
        if len(words) >= WORDS_MIN:
            # The first word is the kind of the error: it is never taken for a value.
            for place in range(1, len(words)):
                alike[(*words[:place], WORD, *words[place + 1 :])].append(reason)
    for pattern, variants in sorted(alike.items(), key=lambda item: -len(item[1])):
        left = [reason for reason in variants if result[reason] == reason]
        if len(left) >= VARIANTS_MIN:
            result.update(dict.fromkeys(left, " ".join(pattern)))
    return result
