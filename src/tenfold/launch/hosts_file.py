"""The machines of a run, read from hosts files in the formats of Open MPI and MPICH."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tenfold.common.files import read_regular
from tenfold.errors import MachineError

NAME = re.compile(r"(?:[\w.-]+@)?(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])")
FORMS = "write one name per line, with its number of processes: `node1 slots=4` or `node1:4`"
IGNORED = ("max_slots", "max-slots")  # a limit on other programs that use the file


@dataclass(frozen=True)
class Host:
    """A machine, as ssh reaches it, and how many processes run there."""

    name: str
    slots: int = 1

    @property
    def address(self) -> str:
        """Its name without the user, as the other machines know it."""
        return self.name.rpartition("@")[2]


def read_hosts(path: Path, slots: int = 1) -> tuple[Host, ...]:
    """Read a hosts file; `slots` is the default for lines without a number."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise MachineError(f"there is no hosts file {path}; {FORMS}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise MachineError(f"the hosts file {path} cannot be read: {reason}") from None
    return parse_hosts(text, str(path), slots)


def parse_hosts(text: str, where: str = "hosts", slots: int = 1) -> tuple[Host, ...]:
    """Return the hosts in the order of the text; the slots of a repeated name add up.

    A line is `name`, `name slots=4` (Open MPI) or `name:4` (MPICH); what follows # is a comment.
    """
    found: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            name, count = _read_line(words, f"{where}, line {number}", slots)
            found[name] += count
    if not found:
        raise MachineError(f"{where} names no host; {FORMS}")
    return tuple(Host(name, count) for name, count in found.items())


def _read_line(words: list[str], where: str, slots: int) -> tuple[str, int]:
    name, *settings = words
    outside_brackets = name.rpartition("]")[2]
    if outside_brackets.count(":") == 1:
        name, _, count = name.rpartition(":")
        settings.insert(0, f"slots={count}")
    if not NAME.fullmatch(name) or name.startswith("-"):
        raise MachineError(f"{where}: '{name}' is not a host name; {FORMS}")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in ("slots", *IGNORED):
            raise MachineError(f"{where}: '{setting}' is not understood; {FORMS}")
        if not (value.isdecimal() and int(value) >= 1):
            raise MachineError(f"{where}: {key} is '{value}'; it takes a whole number of at least 1")
        if key == "slots":
            slots = int(value)
    return name, slots
