"""Makes a script that fails shorter: fewer faults, fewer changes of turn, and it still fails."""

from collections.abc import Callable, Iterable

import msgspec

from tests.simulation.world import Script

__all__ = ["TRIES_MAX", "shorten"]

TRIES_MAX = 150

Fails = Callable[[Script], bool]


def shorten(script: Script, fails: Fails, turns: int, tries: int = TRIES_MAX) -> Script:
    """The shortest script found that fails too. `turns` is how many it takes."""
    attempts = Attempts(fails, tries)

    def with_faults(steps: Iterable[int]) -> Script:
        return msgspec.structs.replace(script, faults=frozenset(steps))

    steps = {step for step in script.faults if step < turns}
    script = with_faults(fewer(sorted(steps), with_faults, attempts))

    def with_switches(steps: Iterable[int]) -> Script:
        return msgspec.structs.replace(script, switches=frozenset(steps))

    switches = fewer(list(range(turns)), with_switches, attempts)
    return with_switches(switches) if len(switches) < turns else script


class Attempts:
    """So many tries, and no more."""

    def __init__(self, fails: Fails, tries: int) -> None:
        self._fails = fails
        self.left = tries

    def fails(self, script: Script) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self._fails(script)


def fewer(
    steps: list[int], script_of: Callable[[list[int]], Script], attempts: Attempts
) -> list[int]:
    """As few of some steps as still fail: halves are left out, then quarters, and so on."""
    size = (len(steps) + 1) // 2
    while size:
        place = 0
        while place < len(steps) and attempts.left:
            shorter = steps[:place] + steps[place + size :]
            if attempts.fails(script_of(shorter)):
                steps = shorter
            else:
                place += size
        size //= 2
    return steps
