"""Programs of its owner ask a server on this machine, and so may any web page that he has open. Requests here are as browsers send them."""

import http.client
import json
import socket
from contextlib import closing

import pytest
from support.clients import Reply
from support.local_server import exposed, options

from edgekv.common.errors import ConfigError
from edgekv.server.server import Server
from edgekv.server.sites import Admitted, admitted, parse_hosts, parse_origin

PROMPT = {"prompt": [1, 300, 301, 302], "n_predict": 2, "ignore_eos": True}
JSON = "application/json"


def send(server: Server, path: str, body: object = None, method: str | None = None, **headers: str | None) -> Reply:
    """The reply to a request with these headers and no others."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.putrequest(method or ("GET" if body is None else "POST"), path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{server.port}", "Content_Length": None if data is None else str(len(data)), **headers}.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(data)
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.body["error"]["message"]


def test_a_server_for_others(synthetic):
    """The server listens on all addresses, behind a key and a name: it lets in addresses of the network and the hosts that were named."""
    key = {"Authorization": "Bearer k"}
    own = socket.gethostname()
    with Server(options(synthetic("llama"), host="0.0.0.0", api_key="k", allow_host=("chat.example.org", "fe80::1"), cors="https://other.example")) as server:
        for host in ("192.168.7.7:8080", "10.0.0.1", "[2001:db8::1]:80", "chat.example.org", "CHAT.example.org:443", own, f"{own}:8080", "localhost:9"):
            assert send(server, "/v1/models", Host=host, **key).status == 200
            assert send(server, "/completion", PROMPT, Host=host, Content_Type=JSON, Origin=f"http://{host}", **key).status == 200, "its own page"
        for host in ("evil.example", "example.org", "x.chat.example.org", "10.0.0.1.evil.example", "10.0.0", "0x7f000001"):
            assert send(server, "/v1/models", Host=host, **key).status == 403
        for origin, status in (("https://other.example", 200), ("https://chat.example.org", 200), ("https://third.example", 403),
                               ("http://10.0.0.1", 403), ("http://other.example", 403), ("null", 403)):
            assert send(server, "/completion", PROMPT, Content_Type=JSON, Origin=origin, **key).status == status, origin
        assert send(server, "/v1/models").status == 401, "a name opens nothing that needs a key"


def test_a_host_that_is_no_name_is_said_at_the_start(synthetic, monkeypatch):
    """The host is refused however the system finds an address for it."""
    from edgekv.server import server

    monkeypatch.setattr(server, "free_port", lambda host, port: 1)
    with pytest.raises(ConfigError, match="'a b' is not a host"):
        Server(options(synthetic("llama"), host="a b")).start()
    assert server.active() is None


PREFLIGHT = {"method": "OPTIONS", "Access_Control_Request_Method": "POST", "Access_Control_Request_Private_Network": "true"}


def agrees(server: Server, origin: str) -> bool:
    """Whether pages of an origin may use the server, as a browser's question and the request behind it say alike."""
    asked, answered = send(server, "/completion", Origin=origin, **PREFLIGHT), send(server, "/completion", PROMPT, Content_Type=JSON, Origin=origin)
    allowed, also = (reply.headers.get("access-control-allow-origin") in (origin, "*") for reply in (asked, answered))
    assert (asked.status, answered.status, also) == ((200, 200, True) if allowed else (403, 403, False))
    assert asked.headers["vary"] == answered.headers["vary"] == "Origin"
    assert (asked.headers.get("access-control-allow-private-network") == "true") is allowed
    return allowed


@pytest.mark.parametrize(("cors", "let_in", "refused"), [
    ("vscode-webview:", ["vscode-webview://1a2b", "VSCODE-webview://x"], ["vscode-webviewer://x", "http://localhost"]),
    ("app://obsidian.md/", ["app://obsidian.md"], ["app://obsidian.mdx", "app://other"]),
    ("https://Chat.example:443/", ["https://chat.example"], ["https://chat.example:8443", "http://chat.example"]),
    ("*", ["https://anything.example", "app://.", "null"], []),
])
def test_origins_as_people_write_them(synthetic, cors, let_in, refused):
    with Server(options(synthetic("llama"), cors=cors)) as server:
        for origin in (*let_in, *refused):
            assert agrees(server, origin) is (origin in let_in), origin


@pytest.fixture(scope="module")
def alone(synthetic):
    """A server for programs of this machine, without a key, as `edgekv serve` starts it."""
    with Server(options(synthetic("llama"))) as server:
        yield server


def n_computed(server: Server) -> float:
    return exposed(server).get(("edgekv_tokens_total", ()), 0)


def test_a_rebound_page_gets_nothing(alone):
    """The page's name was given the address 127.0.0.1, so that the browser takes the server for the page's own: it asks no question before,
    and shows each answer to the page."""
    before = n_computed(alone)
    for host in ("evil.example", f"evil.example:{alone.port}", "127.0.0.1.evil.example", "localhost.evil.example:80", "evil.example:localhost",
                 "[::1].evil.example", "192.168.7.7:8080", "x@127.0.0.1", "127.0.0.1, evil.example", "localhost:80:80", "[::1", ""):
        page = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        for reply in (send(alone, "/props", Host=host), send(alone, "/slots", Host=host), send(alone, "/edgekv", Host=host),
                      send(alone, "/health", Host=host), send(alone, "/completion", PROMPT, Content_Type=JSON, **page),
                      send(alone, "/completion", method="OPTIONS", **page)):
            assert reply.status == 403 and reply.body["error"]["type"] == "permission_error" and "--allow-host" in reply.body["error"]["message"]
    assert n_computed(alone) == before


@pytest.mark.parametrize("host", ["localhost", "LocalHost:81", "localhost.:8080", "127.0.0.1", "127.0.0.1:1", "127.8.9.10:99", "[::1]", "[::1]:8080",
                                  "[0:0:0:0:0:0:0:1]:80", None])
def test_this_machine_is_known_by_its_names(alone, host):
    """None is a balancer's health check in HTTP/1.0; browsers always send a host."""
    assert send(alone, "/v1/models", Host=host).status == 200
    assert send(alone, "/completion", PROMPT, Host=host, Content_Type=JSON).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
                                  "text/plain; application/json", "application/jsonx", None])
def test_what_a_browser_sends_without_a_question_does_not_run(alone, kind):
    """Another site's page sends it, or an old browser that does not name its site."""
    before = n_computed(alone)
    status, sentence = refusal(send(alone, "/completion", PROMPT, Content_Type=kind))
    assert status == 415 and "Content-Type: application/json" in sentence
    for origin in ("https://evil.example", "http://evil.example:80", "null", "http://localhost.evil.example", "http://10.0.0.1", "file://"):
        status, sentence = refusal(send(alone, "/completion", PROMPT, Content_Type=kind, Origin=origin))
        assert status == 403 and "--cors" in sentence
        assert send(alone, "/slots/0?action=erase", b"", Origin=origin).status == 403, "a POST without a body is simple too"
        assert send(alone, "/v1/stream", method="DELETE", Origin=origin).status == 403
    assert n_computed(alone) == before


def test_a_browsers_question_is_answered_as_its_request(alone):
    for origin in ("http://localhost:3000", "https://localhost", "HTTP://LOCALHOST", "http://127.0.0.1:5173", "http://[::1]:1", "http://127.8.9.10",
                   "tauri://localhost", "capacitor://localhost"):
        assert agrees(alone, origin), origin
    for origin in ("https://evil.example", "app://obsidian.md", "vscode-webview://x", "null", "http://localhost.evil.example"):
        assert not agrees(alone, origin), origin
    assert send(alone, "/v1/models", Origin="https://evil.example").headers.get("access-control-allow-origin") is None
    assert send(alone, "/v1/models", method="OPTIONS").status == 200


def test_what_an_origin_is():
    for text in ("app://", "app:", "app://*", "app:///"):
        assert parse_origin(text) == "app://"
    assert parse_origin("http://a:80") == "http://a" and parse_origin("https://a:80") == "https://a:80"
    for wrong in ("example.org", "example.org:80", "http://", "https:", "https://*", "https://a/b", "https://a,https://b", "", "app://a b"):
        with pytest.raises(ConfigError, match="is not an origin"):
            parse_origin(wrong)


@pytest.mark.parametrize(("request_", "status", "sentence"), [
    (b"POST /completion HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415,
     "Content-Encoding is 'br'; send its body as it is"),
    (b"POST /completion HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n", 413, "8 MiB are taken at most"),
    (b"POST /completion\r\n\r\n", 400, "the request cannot be read"),
])
def test_no_error_is_without_a_sentence(alone, request_, status, sentence):
    """A body that is too large is refused before it comes."""
    with socket.create_connection(("127.0.0.1", alone.port), timeout=60) as connection:
        connection.sendall(request_)
        response = http.client.HTTPResponse(connection)
        response.begin()
        error = json.loads(response.read())["error"]
    assert (response.status, error["code"], error["type"]) == (status, status, "invalid_request_error") and sentence in error["message"]


@pytest.mark.parametrize(("path", "sentence"), [
    ("//v1/models", "there is no '//v1/models' here, ask for '/v1/models'; the base URL of a client ends in /v1, once"),
    ("/v1/models/", "ask for '/v1/models'"), ("/v1/v1/chat/completions", "ask for '/v1/chat/completions'"), ("//v1//v1/v1/models//", "ask for '/v1/models'"),
    ("/v1/", "/v1/models lists the models"), ("/v1", "/v1/models lists the models"), ("/nothing", "File Not Found"),
])
def test_a_base_url_with_too_much(alone, path, sentence):
    reply = send(alone, path)
    assert reply.status == 404 and reply.body["error"]["type"] == "not_found_error" and sentence in reply.body["error"]["message"]


def test_what_clients_send_besides_json(alone):
    """Sound comes as a form. An action that has no body has no type."""
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\0\1\r\n--x--\r\n'
    for path in ("/v1/audio/transcriptions", "/audio/transcriptions"):
        status, sentence = refusal(send(alone, path, form, Content_Type="multipart/form-data; boundary=x"))
        assert status == 501 and "does not support audio" in sentence
        assert send(alone, path, form, Content_Type="multipart/form-data; boundary=x", Origin="https://evil.example").status == 403
    assert send(alone, "/slots/0?action=erase", b"").status not in (403, 415)


def test_one_connection_goes_on_after_a_refusal(alone):
    connection = http.client.HTTPConnection("127.0.0.1", alone.port, timeout=60)
    for kind, wanted in (("text/plain", 415), (JSON, 200), ("text/plain", 415), ("application/json; charset=utf-8", 200), ("Application/JSON;x=y", 200)):
        connection.request("POST", "/completion", json.dumps({**PROMPT, "x": "y" * 50_000}), {"Content-Type": kind})
        response = connection.getresponse()
        response.read()
        assert response.status == wanted
    connection.close()


def test_who_is_let_in():
    assert admitted("127.0.0.1", (), False) == Admitted(("127.0.0.1",), False)
    own = socket.gethostname().lower()
    assert admitted("0.0.0.0", ("a.b",), True) == Admitted(tuple(sorted({"a.b", own, f"{own.split('.')[0]}.local"})), True)
    assert {"box.lan", own} <= set(admitted("Box.lan", (), True).names)
    assert parse_hosts("A.example, b ,[::1],10.0.0.1,") == ("a.example", "b", "::1", "10.0.0.1") and parse_hosts("") == ()
    for wrong in ("https://a.example", "a.example:80", "a/b", "*", "a b", "ü.example", "a..b", "-a", "[::1]:80"):
        with pytest.raises(ConfigError, match="is not a host"):
            parse_hosts(wrong)
