"""Everything that a page of another site, or a guess, could try against the board."""

import pytest
from board_client import BoardClient
from looped import looped
from made_runs import make_run

from tenfold.board.security import Access, is_own_name
from tenfold.board.server import Board, check_access
from tenfold.errors import ExperimentError, StoreError

EVIL = '<script>alert("x")</script>'
HERE = "http://127.0.0.1:8642"
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
PAGES = ["/", "/run/1", "/compare?runs=1,2", "/data/runs", "/data/run/1", "/run/1.json", "/data/filter?q=a"]


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, steps_per_epoch=30, epochs=1, name=EVIL, warnings=(EVIL,))
    make_run(folder, steps_per_epoch=30, epochs=1, status="failed", error=EVIL, lr=0.1)
    return Board(make_run(folder, empty=True).store, Access())


@pytest.fixture
def client(board):
    return BoardClient(board.app(), base_url=HERE)


@pytest.fixture
def friend(client, board):
    """A browser that has opened the address with the token."""
    assert client.get("/", params={"token": board.access.token}).status_code == 200
    return client


def post(client, board, path="/run/1/note", headers=(), **body):
    given = {"origin": HERE, "x-tenfold-action": board.access.action_token} | dict(headers)
    kept = {name: value for name, value in given.items() if value is not None}
    return client.post(path, json=body or {"note": "seen"}, headers=kept)


@looped("page", PAGES)
def test_nothing_is_shown_without_the_token(client, page):
    answer = client.get(page)
    assert answer.status_code == 403
    assert "tenfold board" in answer.text
    assert client.get(page, params={"token": "guessed"}).status_code == 403


@looped("page", PAGES)
def test_the_token_opens_every_page_and_becomes_a_cookie(friend, page):
    answer = friend.get(page)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe-inline" not in answer.headers["content-security-policy"].split("script-src")[1].split(";")[0]
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_cookie_is_for_this_site_and_not_for_scripts(client, board):
    cookie = client.get("/", params={"token": board.access.token}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@looped("host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_a_name_that_was_made_to_resolve_here_is_refused(friend, board, host):
    assert friend.get("/data/runs", headers={"host": host}).status_code == 403
    assert post(friend, board, headers={"host": host, "origin": f"http://{host}"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8642", "127.0.0.1", "[::1]:9000", "192.168.1.7:8642"])
def test_names_and_addresses_of_this_machine_are_known(host):
    assert is_own_name(host, frozenset())


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1:8642.evil"),
        *("https://127.0.0.1:8642", "ftp://127.0.0.1:8642", "//127.0.0.1:8642", "http://x@127.0.0.1:8642"),
    ],
)
def test_pages_of_other_sites_can_neither_read_nor_change(friend, board, origin):
    assert friend.get("/data/runs", headers={"origin": origin}).status_code == 403
    assert post(friend, board, headers={"origin": origin}).status_code == 403


def test_a_form_of_another_site_changes_nothing(friend, board):
    form = {"content-type": "text/plain"}
    assert friend.post("/run/1/note", content='{"note": "evil"}', headers=form).status_code == 403
    crossed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert post(friend, board, headers=crossed).status_code == 403
    assert post(friend, board, headers=LINK).status_code == 403
    assert friend.get("/data/runs", headers=LINK).status_code == 200
    assert post(friend, board, headers={"origin": None}).status_code == 403
    assert post(friend, board, headers={"x-tenfold-action": None}).status_code == 403
    assert post(friend, board, headers={"x-tenfold-action": "guessed"}).status_code == 403
    assert friend.get("/run/1/remove").status_code in (404, 405)
    assert board.store.find(1)["note"] == ""
    assert post(friend, board).status_code == 200


@looped(
    "path",
    [
        *("/static/../server.py", "/static/..%2Fserver.py", "/static/%2e%2e/%2e%2e/errors.py", "/static//etc/passwd"),
        *("/run/1/../../etc/passwd", "/run/..%2f1", "/run/1.toml", "/run/one", "/static/tenfold.db", "/data/run/-1"),
        *("/run/99999999999999999999999", "/compare?runs=1", "/compare?runs=../x", "/data/run/1/curves?from=a&to=b"),
        *("/data/run/1/curves", "/data/run/1/lanes?from=1", "/data/run/1/lanes?from=nan&to=inf"),
    ],
)
def test_no_path_reaches_a_file(friend, path):
    answer = friend.get(path)
    assert answer.status_code in (400, 404, 405)
    assert "import" not in answer.text
    assert "root:" not in answer.text


@looped("body", ["[1]", "not json", '{"note": 3}', "{}", '{"note": "' + "x" * 70_000 + '"}'])
def test_what_is_not_a_request_is_refused_in_a_sentence(friend, board, body):
    headers = {"origin": HERE, "x-tenfold-action": board.access.action_token, "content-type": "application/json"}
    answer = friend.post("/run/1/note", content=body, headers=headers)
    assert answer.status_code in (400, 413)
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("page", ["/run/1", "/run/2", "/compare?runs=1,2"])
def test_names_and_errors_stay_text(friend, page):
    text = friend.get(page).text
    assert EVIL not in text
    assert "&lt;script&gt;" in text


def test_a_board_for_other_machines_needs_a_token_of_yours():
    with pytest.raises(ExperimentError, match="--token"):
        check_access("0.0.0.0", None)
    with pytest.raises(ExperimentError, match="16 or more"):
        check_access("127.0.0.1", "short")
    assert check_access("0.0.0.0", "abcdefghij123456").token == "abcdefghij123456"


def test_tags_are_limited_in_number_and_length(friend, board):
    for tags in (" ".join(f"tag{number}" for number in range(51)), "x" * 61, "ok " + "x" * 5000):
        assert post(friend, board, "/run/1/tag", tags=tags).status_code == 400
    assert board.store.find(1)["tags"] == ()
    for kind in ("one", "other"):  # fifty are replaced by fifty
        assert post(friend, board, "/run/1/tag", tags=" ".join(f"{kind}{n}" for n in range(50))).status_code == 200
    with pytest.raises(StoreError, match="at most 50 tags"):
        board.store.tag(1, "another")
    board.store.tag(1, "other3")
    assert post(friend, board, "/run/1/tag", tags="").status_code == 200
