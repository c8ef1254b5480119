"""The server: addresses, their handlers, and the actions on a run.

No part of an address is a path: runs are named by their numbers.
"""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tenfold.board.feed import INSTANCE, Feed, Position, json_line
from tenfold.board.pages import DOWNLOADS, PLOT_COLUMNS, Pages, RunList, Watch
from tenfold.board.security import Access, Guard
from tenfold.common.files import make_own_folder, open_regular, open_to_update
from tenfold.common.imports import tenfold_command
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError
from tenfold.reports.pages.page import TYPES, page_style, static_files
from tenfold.runs import Store
from tenfold.runs.claim import LOCK
from tenfold.runs.maintenance import remove_run, rename_run, to_remove
from tenfold.runs.run import announced_board
from tenfold.runs.store import Follower
from tenfold.runs.tables import checked_tags

LONGEST_BODY = 64 * 1024
MOST_COLUMNS = 4000
LARGEST_NUMBER = 1e15


class Board:
    """The application of one folder of runs."""

    def __init__(self, store: Store, access: Access) -> None:
        self.store = store
        self.access = access
        self.follower = Follower(store)
        self.watch = Watch(store, self.follower)
        self.runs = RunList(store, self.follower)
        self.pages = Pages(self.watch, access.action_token)
        self.feed = Feed(self.runs, self.watch, self.pages, self.follower)
        self.actions = Actions(store)
        self.static = static_files("tenfold.reports.pages") | static_files("tenfold.board")
        self.static["report.css"] = (TYPES[".css"], page_style().encode())

    def app(self) -> Starlette:
        pages, number = self.pages, _path_number

        def rows(_: Request) -> dict[str, Any]:
            self.runs.update()
            listed = self.runs.since(0)
            return listed | {"version": f"{INSTANCE}:{listed['version']}"}

        def chosen(request: Request) -> dict[str, Any]:
            return {"runs": self.runs.select(request.query_params.get("q", "")[:1000])}

        def scaling(request: Request) -> dict[str, Any]:
            query = request.query_params
            return pages.race_scaling(query.get("link", ""), int(query.get("workers", "0")))

        def versus(request: Request) -> dict[str, Any]:
            return {"versus": pages.versus(number(request), request.path_params["other"])}

        def explain(_: Request, error: Exception) -> Response:
            wrong = (
                str(error) if isinstance(error, TenfoldError) else "the address holds something that is not a number"
            )
            return PlainTextResponse(wrong, status_code=400)

        routes = [
            Route("/", _page(lambda _: pages.runs())),
            Route("/run/{run:int}", _page(lambda request: pages.run(number(request)))),
            Route("/run/{run:int}.{kind:str}", self.download),
            Route("/compare", _page(lambda request: pages.comparison(_numbers(request)))),
            Route("/race", _page(lambda _: pages.race())),
            Route("/static/{name:str}", self.static_file),
            Route("/data/runs", _data(rows)),
            Route("/data/filter", _data(chosen)),
            Route("/data/compare", _data(lambda request: pages.comparison_charts(_numbers(request)))),
            Route("/data/race", _data(lambda _: pages.race_parts())),
            Route("/data/race/scaling", _data(scaling)),
            Route("/data/run/{run:int}", _data(lambda request: self.watch.figure(self.watch.open(number(request))))),
            Route("/data/run/{run:int}/rest", _data(lambda request: pages.after_end(number(request)))),
            Route("/data/run/{run:int}/{what:str}", _data(self.stretch)),
            Route("/data/run/{run:int}/versus/{other:int}", _data(versus)),
            Route("/feed", self.feed_data),
            Route("/run/{run:int}/{action:str}", self.act, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {TenfoldError: explain, ValueError: explain}
        return Starlette(routes=routes, middleware=[Middleware(Guard, access=self.access)], exception_handlers=handlers)

    def stretch(self, request: Request) -> dict[str, Any]:
        what, number = request.path_params["what"], _path_number(request)
        if what not in ("curves", "lanes"):
            raise HTTPException(404, "a run has curves and lanes")
        first, last = (_number(request, name) for name in ("from", "to"))
        columns = min(MOST_COLUMNS, max(1, int(request.query_params.get("columns", PLOT_COLUMNS))))
        self.watch.open(number)
        with self.watch.measurements(number) as watched:
            return {what: getattr(watched, what).between(first, last, columns)}

    def static_file(self, request: Request) -> Response:
        """Answer with a script or style; only files of the package are served."""
        if request.path_params["name"] not in self.static:
            raise HTTPException(404, "there is no such file")
        kind, content = self.static[request.path_params["name"]]
        return Response(content, media_type=kind)

    def download(self, request: Request) -> Response:
        kind, number = request.path_params["kind"], request.path_params["run"]
        if kind not in DOWNLOADS:
            raise HTTPException(404, f"a run can be saved as {', '.join(DOWNLOADS)}")
        *_, media_type, make = DOWNLOADS[kind]
        text = make(self.watch.open(number))
        name = f"tenfold-run-{number}.{kind}"
        return Response(text, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def feed_data(self, request: Request) -> Response:
        listed, runs = request.query_params.get("list"), request.query_params.get("runs")
        if last := request.headers.get("last-event-id"):
            version, _, runs = last.partition("|")
            listed = version or None
        others = (request.query_params.get(name) for name in ("parts", "only", "running"))
        position = Position.read(listed, runs, *others)
        return StreamingResponse(self.feed.messages(position), media_type="text/event-stream")

    async def act(self, request: Request) -> Response:
        action = self.actions.by_name.get(request.path_params["action"])
        if action is None:
            raise HTTPException(404, "there is no such action")
        given = await _body(request)
        return _json({"done": await run_in_threadpool(action, request.path_params["run"], given)})


def _json(value: Any) -> Response:
    return Response(json_line(value), media_type="application/json")


def _page(make: Callable[[Request], str]) -> Callable[[Request], Response]:
    return lambda request: HTMLResponse(make(request))  # Starlette runs functions that are not async in a thread


def _data(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    return lambda request: _json(make(request))


def _path_number(request: Request) -> int:
    return int(request.path_params["run"])


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON body of a request; other types are rejected."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "the request has to be JSON")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > LONGEST_BODY:
            raise HTTPException(413, "the request is too long")
    try:
        given = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not valid JSON") from None
    if not isinstance(given, dict):
        raise HTTPException(400, "the request has to be a JSON object")
    return given


def _number(request: Request, name: str) -> float:
    value = float(request.query_params.get(name, "nan"))
    if not math.isfinite(value) or abs(value) > LARGEST_NUMBER:
        raise HTTPException(400, "write where the stretch begins and ends: ?from=0&to=100")
    return value


def _numbers(request: Request) -> list[int]:
    words = request.query_params.get("runs", "").split(",")
    if not all(word.isascii() and word.isdecimal() and len(word) < 19 for word in words):
        raise HTTPException(400, "write the numbers of runs: /compare?runs=1,2")
    return [int(word) for word in words]


PORT = 8642
LOCAL = ("127.0.0.1", "::1", "localhost")
FEWEST_LETTERS = 16


def serve(
    runs: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the runs of a folder until the process is interrupted; `ready` is called with the address to open."""
    access = check_access(host, token)
    store = Store(runs)
    bound = bind_socket(host, port)
    import uvicorn

    board = Board(store, access)
    server = uvicorn.Server(
        uvicorn.Config(board.app(), log_level="warning", access_log=False, timeout_graceful_shutdown=5, lifespan="off")
    )
    board.feed.stopping = lambda: server.should_exit
    shown = address(host, bound.getsockname()[1], access.token)
    ready(shown)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        if token is None and host == "127.0.0.1":  # a token of the user's own may be used elsewhere, too
            stack.enter_context(announced_board(store.folder, shown))
        server.run(sockets=[bound])


def check_access(host: str, token: str | None) -> Access:
    """Return the secrets of a server; ExperimentError if other machines could reach it and no token was given."""
    if host not in LOCAL and token is None:
        raise ExperimentError(
            f"--host {host} opens the board to other machines over an unencrypted connection, and anyone with "
            "the token can stop and remove runs; to allow this, choose a token: --token SECRET"
        )
    if token is not None and (len(token) < FEWEST_LETTERS or not token.isascii() or not token.isalnum()):
        raise ExperimentError(f"the token should be {FEWEST_LETTERS} or more letters and digits")
    names = frozenset() if host in LOCAL else frozenset({host.lower(), socket.getfqdn().lower()})
    return Access(token=token, names=names) if token is not None else Access(names=names)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket on this port, or on any free port if the default port is in use; 0 uses any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in (port, 0) if port == PORT else (port,):
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, tried))
        except (OSError, OverflowError) as error:
            bound.close()
            problem = error
            continue
        bound.listen(128)
        return bound
    reason = getattr(problem, "strerror", None) or problem
    raise MachineError(f"the board cannot listen on {host} port {port}: {reason}; --port 0 takes any free port")


def address(host: str, port: int, token: str) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={token}"


RESUME_SECONDS = 3.0
"""How long a resumed run is watched for startup errors."""
LONGEST_NOTE = 10_000


class Actions:
    """Acts on the runs of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._started: list[subprocess.Popen[str]] = []
        actions = (self.stop, self.resume, self.rename, self.tag, self.note, self.remove)
        self.by_name: dict[str, Callable[[int, dict[str, Any]], str]] = {each.__name__: each for each in actions}

    def stop(self, number: int, _given: dict[str, Any]) -> str:
        """Interrupt a run as Ctrl-C does: it saves its state before it ends, and can be resumed."""
        record = self.store.find(number)
        if record["status"] != "running":
            raise StoreError(f"run {number} is not running; it is {record['status']}")
        if record["host"] != socket.gethostname():
            raise StoreError(f"run {number} is running on {record['host']}; stop it there")
        lock = self.store.path(number, record["title"]) / LOCK
        if not _holds(record["pid"], lock):
            raise StoreError(
                f"the process of run {number} cannot be identified with certainty; stop it where it was started"
            )
        os.kill(record["pid"], signal.SIGINT)
        return "stopping; it can be resumed"

    def resume(self, number: int, _given: dict[str, Any]) -> str:
        """Resume a run in a separate process, which outlives this server."""
        record = self.store.find(number)
        if record["status"] not in ("interrupted", "failed"):
            raise StoreError(f"run {number} is {record['status']}; there is nothing to resume")
        if record["status"] == "failed" and record["result"].get("diverged"):
            raise StoreError(f"the loss of run {number} diverged and would diverge again; train with other settings")
        command = tenfold_command("resume", str(number), "--runs", str(self.store.folder))
        log = self.store.path(number, record["title"]) / "resume.log"
        try:
            make_own_folder(log.parent)
            log.unlink(missing_ok=True)
            output = open_to_update(log)
        except OSError as error:
            raise StoreError(f"{log} cannot be written: {error.strerror}") from None
        with output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, start_new_session=True
            )
        self._started = [item for item in self._started if item.poll() is None] + [process]
        until = time.monotonic() + RESUME_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if self.store.find(number)["status"] == "running":
                return "resumed"
            time.sleep(0.1)
        if process.poll():
            raise StoreError(_last_line(log) or f"run {number} could not be resumed")
        return "resuming"

    def rename(self, number: int, given: dict[str, Any]) -> str:
        rename_run(self.store, number, _text(given, "title"))
        return f"renamed to {_text(given, 'title')}"

    def tag(self, number: int, given: dict[str, Any]) -> str:
        """Replace the tags of a run."""
        wanted = set(checked_tags(_text(given, "tags").replace(",", " ").split()))
        had = set(self.store.find(number)["tags"])
        self.store.untag(number, *sorted(had - wanted))
        self.store.tag(number, *sorted(wanted - had))
        return f"tagged {' '.join(sorted(wanted))}" if wanted else "has no tags now"

    def note(self, number: int, given: dict[str, Any]) -> str:
        text = _text(given, "note").strip()
        if len(text) > LONGEST_NOTE:
            raise StoreError(f"a note can have at most {LONGEST_NOTE:,} characters, not {len(text):,}")
        self.store.find(number)
        self.store.set_note(number, text)
        return "note saved" if text else "note removed"

    def remove(self, number: int, given: dict[str, Any]) -> str:
        """Remove a run and its folds; their folders go to the trash."""
        if given.get("confirmed") is not True:
            raise StoreError("the removal of a run must be confirmed")
        places = [remove_run(self.store, item) for item in to_remove(self.store, self.store.find(number))]
        return f"removed; its folder is in {places[-1].parent.name}/{places[-1].name}"


def _holds(pid: int, lock: Path) -> bool:
    """Return whether a process has the lock of a run open; its id may belong to another process by now."""
    import psutil

    try:
        return any(Path(open_file.path) == lock.resolve() for open_file in psutil.Process(pid).open_files())
    except psutil.Error:
        return False


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise StoreError(f"the request has no text '{name}'")
    return value


def _last_line(log: Path) -> str:
    with open_regular(log) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_NOTE))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""
