"""Hosts files: the forms that are understood, and what is said of those that are not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.launch.start import Host, parse_hosts, read_hosts

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True)


@looped(
    ("text", "expected"),
    [
        ("node1\nnode2\n", [("node1", 1), ("node2", 1)]),
        ("node1 slots=4\nnode2 slots=2 max_slots=8\n", [("node1", 4), ("node2", 2)]),
        ("node1:4\nnode2:2", [("node1", 4), ("node2", 2)]),
        ("# all of them\n\nnode1 slots=2  # the new one\n  node2\n", [("node1", 2), ("node2", 1)]),
        ("node1\nnode2\nnode1\n", [("node1", 2), ("node2", 1)]),
        ("me@10.0.0.1 slots=2\r\n[fe80::1]:3\r\n", [("me@10.0.0.1", 2), ("[fe80::1]", 3)]),
    ],
)
def test_it_is_understood(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_hosts(text) == tuple(Host(name, slots) for name, slots in expected)


def test_lines_that_say_no_slots_take_what_is_asked_for() -> None:
    assert parse_hosts("a\nb slots=1\na\n", slots=3) == (Host("a", 6), Host("b", 1))


def test_others_know_a_host_without_its_user() -> None:
    assert Host("me@node1").address == "node1"
    assert Host("node1").address == "node1"


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 64)), min_size=1, max_size=8), st.sampled_from(["{} slots={}", "{}:{}"])
)
def test_no_slot_is_lost_in_either_form(wanted: list[tuple[str, int]], form: str) -> None:
    hosts = parse_hosts("\n".join(form.format(*item) for item in wanted))
    assert sum(host.slots for host in hosts) == sum(slots for _, slots in wanted)
    assert [host.name for host in hosts] == list(dict.fromkeys(name for name, _ in wanted))


@looped(
    ("text", "said"),
    [
        ("", "hosts.txt"),
        ("# nobody\n", "hosts.txt names no host"),
        ("node1\nnode2 slots=0\n", "hosts.txt"),
        ("node1 slots=many\n", "line 1: slots is 'many'"),
        ("node1:x\n", "line 1: slots is 'x'"),
        ("node1 gpus=2\n", "gpus=2"),
        ("node1 4\n", "understood"),
        ("-oProxyCommand=evil\n", "oProxyCommand=evil"),
        ("node1;rm\n", "node1"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError) as error:
        parse_hosts(text, "hosts.txt")
    assert said in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"there is no hosts file .*; write one name per line"):
        read_hosts(tmp_path / "hosts.txt")
    with pytest.raises(MachineError, match="directory"):
        read_hosts(tmp_path)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00n")
    with pytest.raises(MachineError, match="UTF-8"):
        read_hosts(tmp_path / "odd.txt")
