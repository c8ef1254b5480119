import io
import sys
from contextlib import ExitStack

import cloudpickle
import pytest
from looped import looped

import tenfold
from tenfold.runs.recorder import (
    CONSOLE_FILE,
    CONSOLE_LIMIT,
    ConsoleFile,
    LineBuffer,
    Tap,
    keeping_console,
    listening_to_prints,
    original_streams,
    read_console,
)


@looped(
    ("written", "lines", "rest"),
    [
        (["one\ntwo\nthr", "ee"], ["one", "two"], "three"),
        (["\r 10%", "\r 50%", "\r100%\nnext"], ["100%"], "next"),
        (["10%\r", "20%\r", "30%\r"], [], "30%"),
        (["windows\r", "\nline"], ["windows"], "line"),
        (["\x1b[1;31mred\x1b[0m \x1b[2K\x1b[1A\x1b]0;title\x07\x07plain\n"], ["red plain"], ""),
        (["\x1b[3", "1mcut\n"], ["cut"], ""),
    ],
)
def test_lines_are_those_that_a_terminal_keeps(written, lines, rest):
    buffer = LineBuffer()
    found = [line for text in written for line in buffer.add(text)]
    assert (found, buffer.rest) == (lines, rest)


def test_what_is_kept_is_bounded_and_ends_with_the_last_line(tmp_path):
    console = ConsoleFile(tmp_path / CONSOLE_FILE)
    for part in range(30):
        console.add("".join(f"line {part}-{line} {'x' * 80}\n" for line in range(500)))
        console.write()
    console.add("50%\r100%")
    console.write()
    assert (tmp_path / CONSOLE_FILE).stat().st_size < 2 * CONSOLE_LIMIT + 1000
    kept = read_console(tmp_path)
    assert len(kept) <= CONSOLE_LIMIT
    assert kept.startswith("line ")
    assert kept.endswith("x\n100%")
    again = ConsoleFile(tmp_path / CONSOLE_FILE)  # as a resumed run does
    again.add("more", worker=3)
    again.close()
    assert read_console(tmp_path).endswith("x\n100%\n[worker 3] more\n")


def test_a_file_that_cannot_be_read_or_written_stops_nothing(tmp_path):
    (tmp_path / CONSOLE_FILE).mkdir()
    console = ConsoleFile(tmp_path / CONSOLE_FILE)
    console.add("text\n")
    console.close()
    assert read_console(tmp_path) == ""
    console = ConsoleFile(tmp_path / "gone" / CONSOLE_FILE)
    for _ in range(3):
        console.add("text\n")
        console.write()
    assert read_console(tmp_path / "gone") == ""


def test_streams_are_given_back_however_blocks_end(capsys):
    before = sys.stdout, sys.stderr
    first, second, heard = ExitStack(), ExitStack(), []
    first.enter_context(listening_to_prints(heard.append))
    second.enter_context(listening_to_prints(heard.append))
    assert sys.stdout.encoding == before[0].encoding
    assert cloudpickle.loads(cloudpickle.dumps(sys.stdout)) is sys.stdout
    with original_streams():
        assert (sys.stdout, sys.stderr) == before
    print("hello")
    first.close()
    print("world", file=sys.stderr)
    assert isinstance(sys.stderr, Tap)
    second.close()
    assert (sys.stdout, sys.stderr) == before
    assert "".join(heard) == "hellohello\n\nworld\n"
    assert capsys.readouterr() == ("hello\n", "world\n")
    with pytest.raises(ZeroDivisionError), listening_to_prints(heard.append):
        _ = 1 / 0
    assert (sys.stdout, sys.stderr) == before


def test_a_stream_that_was_replaced_meanwhile_is_left_alone(tmp_path, monkeypatch):
    theirs = io.StringIO()
    with keeping_console(tmp_path):
        held = sys.stdout
        monkeypatch.setattr(sys, "stdout", theirs)
    assert sys.stdout is theirs
    held.write("passed on, but not recorded\n")
    assert read_console(tmp_path) == ""


class Passing(io.StringIO):
    """A user's own stream, which writes to the one it found."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def write(self, text):
        return self.inner.write(text)


def test_a_stream_that_holds_an_old_tap_reports_once(monkeypatch, capsys):
    heard = []
    with listening_to_prints(heard.append):
        theirs = Passing(sys.stdout)
        monkeypatch.setattr(sys, "stdout", theirs)
        print("first", end="")
    with listening_to_prints(heard.append):
        print("second", end="")
    assert "".join(heard) == "firstsecond"
    assert capsys.readouterr().out == "firstsecond"


class Talking:
    """Prints at the end of each epoch."""

    def on_epoch_end(self, event):
        print(f"epoch {event.epoch} <b>")


def test_a_run_keeps_what_it_printed(tmp_path, capsys):
    before = sys.stdout
    given = {"model": "mlp", "data": "digits", "limit": 60, "epochs": 2, "runs": tmp_path}
    run = tenfold.train(**given, callbacks=[Talking()], progress=True)
    assert sys.stdout is before
    lines = run.console.splitlines()
    assert [line for line in lines if "<b>" in line] == ["epoch 0 <b>", "epoch 1 <b>"]
    assert any(line.startswith("epoch 2/2") and "accuracy" in line for line in lines)
    assert capsys.readouterr().out == "epoch 0 <b>\nepoch 1 <b>\n"
