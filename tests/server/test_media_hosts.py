"""Media by address: only from hosts that the options name, at each redirect and by the address that a name has."""

import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import prefix_server, vision
from support.clients import CHAT, send, shown_at
from support.dialects import MESSAGES
from support.loopback import LoopbackServer, QuietHandler
from support.vision import picture, request, user

from edgekv.common.errors import ConfigError
from edgekv.models import synth
from edgekv.server import media_hosts
from edgekv.server.media_hosts import MediaHosts
from edgekv.server.server import Server

PNG = picture(1)


class Site(LoopbackServer):
    """A server of images on the loopback. `asked` are the paths of its requests, with their Host."""

    def __init__(self) -> None:
        super().__init__(_Page)
        self.asked: list[tuple[str, str]] = []


class _Page(QuietHandler):
    def respond(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        status, _, to = self.path[1:].partition("/to/")
        self.answer(int(status.partition("?")[0]), PNG, **({"Location": to} if to else {}))


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def names(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """Names of the network, as another machine gives them."""
    def found(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (addresses.get(host.replace(".", "_"), host), port))]

    monkeypatch.setattr(media_hosts.socket, "getaddrinfo", found)


def test_a_named_host_answers_and_keeps_its_name(site: Site, monkeypatch: pytest.MonkeyPatch):
    names(monkeypatch, img_example="127.0.0.1")
    port = site.server_port
    assert MediaHosts(("127.0.0.1",)).fetch(f"http://127.0.0.1:{port}/200") == PNG
    assert MediaHosts(("img.example", "127.0.0.1")).fetch(f"HTTP://user:pass@IMG.example.:{port}/200?x=1") == PNG
    assert site.asked[-1][0] == "/200?x=1" and site.asked[-1][1].lower() == f"img.example.:{port}"
    assert MediaHosts(("localhost", "img.example")).fetch(f"http://img.example:{port}/302/to/http://img.example:{port}/200") == PNG


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
                                     "::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "2002:a00:1::", "64:ff9b::a00:1"])
def test_a_name_for_a_place_within_the_network_is_refused(address: str, monkeypatch: pytest.MonkeyPatch):
    names(monkeypatch, img_example=address)
    with pytest.raises(ConfigError, match="within this network"):
        MediaHosts(("img.example",)).fetch("http://img.example/a.png")


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:{port}/200", "http://localhost:{port}/200", "http://[::1]:{port}/200", "http://2130706433:{port}/200", "http://127.1:{port}/200",
    "http://img.example@127.0.0.1:{port}/200", "http://127.0.0.1:{port}/200#img.example", "http://127.0.0.1:{port}\\@img.example/200",
    "ftp://img.example/200", "gopher://127.0.0.1:{port}/200", "http:///200", "http://", "http://img.example:port/", "http://[", "http://\x00",
])
def test_no_other_host_is_asked(site: Site, url: str, monkeypatch: pytest.MonkeyPatch):
    names(monkeypatch, img_example="192.0.2.1", localhost="127.0.0.1")
    with pytest.raises(ConfigError):
        MediaHosts(("img.example",)).fetch(url.format(port=site.server_port))
    assert site.asked == []


def test_each_redirect_is_checked(site: Site):
    hosts, at = MediaHosts(("127.0.0.1",)), f"http://127.0.0.1:{site.server_port}"
    assert hosts.fetch(f"{at}/302/to/{at}/307/to//200") == PNG, "a relative one too"
    with pytest.raises(ConfigError, match="nothing is fetched from 'localhost'"):
        hosts.fetch(f"{at}/302/to/http://localhost:{site.server_port}/200")
    with pytest.raises(ConfigError, match="http or https"):
        hosts.fetch(f"{at}/302/to/file:///etc/hostname")
    with pytest.raises(ConfigError, match="leads on more than 4 times"):
        hosts.fetch(f"{at}/302/to/" * 6 + f"{at}/200")
    with pytest.raises(ConfigError, match="answered 404"):
        hosts.fetch(f"{at}/404")


def test_too_much_is_left(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(media_hosts, "MOST_BYTES", len(PNG) - 1)
    with pytest.raises(ConfigError, match="sends more than"):
        MediaHosts(("127.0.0.1",)).fetch(f"http://127.0.0.1:{site.server_port}/200")


# ---- through the server -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = tmp_path_factory.mktemp("sees")
    synth.write("llama", folder / "text.gguf", dtype="f32")
    return folder / "text.gguf", vision.llava(folder / "mmproj.gguf")


@contextmanager
def server(files: tuple, **more: object) -> Iterator[Server]:
    model, projector = files
    with prefix_server.serve(model, extra=("--mmproj", str(projector)), **more) as started:
        yield started


def asked(path: str, url: str) -> dict:
    image = {"type": "image", "source": {"type": "url", "url": url}} if path == MESSAGES else {"type": "image_url", "image_url": {"url": url}}
    return {"max_tokens": 2, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}]}


def test_addresses_are_fetched_only_where_the_options_say_so(files: tuple, site: Site, monkeypatch: pytest.MonkeyPatch):
    url = f"http://127.0.0.1:{site.server_port}/200"
    data = "data:image/png;base64," + base64.b64encode(PNG).decode()
    with server(files) as started:
        for path in (CHAT, MESSAGES):
            assert send(started.url, path, asked(path, data)).status == 200
            for address in (url, url.replace("http:", "HTTP:"), "https://img.example/a.png", "file:///etc/hostname"):
                reply = send(started.url, path, asked(path, address))
                assert reply.status == 400, address
                assert address.startswith("file") or "--allow-media-host" in reply.body["error"]["message"], reply.text
    assert site.asked == []
    with server(files, allow_media_host=("127.0.0.1",)) as started:
        for path in (CHAT, MESSAGES):
            assert send(started.url, path, asked(path, url)).status == 200
            reply = send(started.url, path, asked(path, f"http://127.0.0.1:{site.server_port}/302/to/http://localhost:{site.server_port}/200"))
            assert reply.status == 400 and "nothing is fetched from 'localhost'" in reply.body["error"]["message"]
    assert [path for path, _ in site.asked].count("/200") == 2


def test_a_marker_in_a_message_is_text(files: tuple):
    with server(files) as started:
        marker = shown_at(started, "/props")["media_marker"]
        said = f"The marker is {marker}."
        for content in (said, [{"type": "text", "text": said}]):
            for more in ((), (PNG,)):
                messages = [{"role": "user", "content": content}, {"role": "assistant", "content": marker}, user("and", *more, "now?")]
                reply = send(started.url, CHAT, request(messages))
                assert reply.status == 200, reply.text
        # where clients write prompts themselves, it stands for a medium as before
        raw = send(started.url, "/apply-template", {"messages": [user("see", PNG, "this")]}).body["prompt"]
        assert raw.count(marker) == 1 and raw.partition(marker)[2][:20].strip().startswith("this")
        body = {"prompt": {"prompt_string": raw, "multimodal_data": [base64.b64encode(PNG).decode()]}, "n_predict": 2}
        reply = send(started.url, "/completion", body)
        assert reply.status == 200 and reply.body["tokens_evaluated"] > 64


def test_a_format_that_cannot_be_read_is_named(files: tuple, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")  # without ffmpeg
    with server(files) as started:
        for head, name in ((b"RIFF\0\0\0\0WEBPVP8 ", "WebP"), (b"\0\0\0\x20ftypavif", "AVIF"), (b"\0\0\0\x20ftypheic", "HEIC"), (b"II*\0\x08", "TIFF"),
                             (b"<svg xmlns=''/>", "SVG")):
            reply = send(started.url, CHAT, asked(CHAT, "data:image/any;base64," + base64.b64encode(head + bytes(40)).decode()))
            assert reply.status == 400
            assert reply.body["error"]["message"].startswith(f"an image in {name} cannot be read; send it as PNG, JPEG, GIF")
