"""Prompts with images come back as prompts of text do: by what the images show, and never from within one."""

import base64
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support import prefix_server, vision
from support.clients import CHAT, post, send, shown_at
from support.prefix_server import EXACT
from support.vision import assistant, picture, request, text, user

from edgekv._native.prefix_callbacks import Medium, SequenceTokens
from edgekv.common.errors import EdgeKVError
from edgekv.models import synth
from edgekv.prefix_cache import coming, digests
from edgekv.prefix_cache.files import read_header
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server.media import Media, media_numbers, whole_media
from edgekv.server.server import Server

OPENING = 4
"""Tokens of a prompt's end behind its newest snapshot."""

IMAGES = {"llava": (64, 64), "gemma3": (64, 64), "qwen2vl": (336, 224), "states": (64, 64)}
"""Kinds of models that see, and the sizes of their images. llava: plain rows; gemma3: windows, and tokens of an image see each other; qwen2vl: they have
the same position; states: convolutions."""

TEXTS = {"llava": "llama", "gemma3": "gemma2", "states": "lfm2"}

KINDS = pytest.mark.parametrize("kind", IMAGES)
MODES = pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT], ids=["off", "exact"])


class Seeing(NamedTuple):
    """A model with its projector."""

    kind: str
    model: Path
    projector: Path

    def serve(self, kv: dict = EXACT, store: StoreSettings | None = StoreSettings(), **more) -> Server:
        return prefix_server.serve(self.model, kv, store, extra=("--mmproj", str(self.projector), *more.pop("extra", ())), **more)

    def picture(self, seed: int) -> bytes:
        return picture(seed, *IMAGES[self.kind])


@pytest.fixture(scope="session")
def sees(tmp_path_factory):
    """`sees(kind)`: a tiny model that sees, written once."""
    folder = tmp_path_factory.mktemp("seeing")
    made: dict[str, Seeing] = {}

    def make(kind: str) -> Seeing:
        if kind not in made:
            model = folder / f"{kind}.gguf"
            vision.qwen2vl_text(model) if kind == "qwen2vl" else synth.write(TEXTS[kind], model, dtype="f32")
            write = vision.llava if kind == "states" else getattr(vision, kind)
            made[kind] = Seeing(kind, model, write(folder / f"mmproj-{kind}.gguf"))
        return made[kind]

    return make


class Answer(NamedTuple):
    n_read: int
    sources: dict
    best: np.ndarray
    """float [token, 2]: each token of the answer and its log-probability."""
    text: str


def ask(server: Server, messages: list[dict], n: int = 8, **more) -> Answer:
    said = post(server.url, CHAT, request(messages, n, **more))
    (choice,) = said["choices"]
    found = said["usage"]["edgekv"]["cached_tokens"]
    assert sum(found.values()) - said["timings"]["cache_n"] in (0, 1), "two counts of cached tokens differ"
    best = np.array([(one["id"], one["logprob"]) for one in choice["logprobs"]["content"]])
    return Answer(said["timings"]["prompt_n"], found, best, choice["message"]["content"])


def tail(kind: str) -> int:
    """Tokens that are read of a prompt which comes back whole."""
    return OPENING if kind in ("gemma3", "states") else 1


def about(seeing: Seeing, first: int, second: int) -> list[dict]:
    """A question with two images; the first begins before token 256, and ends behind it."""
    return [user(text(1, 230), seeing.picture(first), text(2, 300), seeing.picture(second), "what is there?")]


@MODES
@KINDS
def test_images_come_back_with_the_same_bits(sees, kind: str, kv: dict, tmp_path: Path):
    """From the slot, from RAM, and from disk behind a restart with other numbers of slots and cells."""
    seeing, where = sees(kind), StoreSettings(ram_bytes=64 << 20, folder=tmp_path)
    one, two = about(seeing, 1, 1), about(seeing, 2, 1)
    with seeing.serve(kv, where) as server:
        cold = ask(server, one)
        stayed = ask(server, one)
        assert cold.n_read > 600 and stayed.n_read <= OPENING
        other = ask(server, two)
        assert other.n_read > 400, "the image is another, and so is all behind it"
        warm = ask(server, one)
        assert warm.n_read == tail(kind) and warm.sources["ram"] > 400
        like = cold if tail(kind) == OPENING else stayed  # the same tokens were read together
        np.testing.assert_array_equal(warm.best, like.best)
        server.prefixes.flush()
    with seeing.serve(kv, where, n_slots=2, n_ctx=4096) as server:
        for messages, before in ((one, like), (two, other)):
            said = ask(server, messages)
            assert said.n_read == tail(kind) and said.sources["disk"] > 400
            np.testing.assert_allclose(said.best, before.best, rtol=0, atol=0.02)  # a last token that is read alone rounds otherwise
            assert messages is two or np.array_equal(said.best, before.best)
    np.testing.assert_allclose(warm.best, cold.best, rtol=0, atol=0.02 if kv is EXACT else 1e-5)


@KINDS
def test_what_stands_behind_an_image_depends_on_it(sees, kind: str):
    """Of a conversation with another image only the text before it is taken, although all other tokens are the same."""
    seeing = sees(kind)
    with seeing.serve() as server:
        ask(server, about(seeing, 1, 1))
        ask(server, [user(text(9, 50))])
        said = ask(server, about(seeing, 2, 1))
        n_before = sum(said.sources.values())
        assert n_before <= 260, "the text before the image"
    with seeing.serve(store=None) as server:
        np.testing.assert_allclose(said.best, ask(server, about(seeing, 2, 1)).best, rtol=0, atol=0.02)


@KINDS
def test_a_turn_behind_an_image_reads_its_own_tokens(sees, kind: str):
    """And so does another conversation that begins in the same way."""
    seeing = sees(kind)
    opening = about(seeing, 1, 2)
    with seeing.serve() as server:
        first = ask(server, opening)
        ask(server, [user(text(9, 50))])
        turn = ask(server, [*opening, assistant(first.text), user("and what else?")])
        assert turn.n_read <= len(f"{first.text}\nuser: and what else?\nassistant: ") + OPENING
        if tail(kind) == 1:  # a snapshot stands at the end of a prompt, not behind each image
            ask(server, [user(text(9, 50))])
            elsewhere = ask(server, [user(text(1, 230), seeing.picture(1), text(2, 300), seeing.picture(2), "something else")])
            assert elsewhere.n_read <= len("something else\nassistant: ") + OPENING


def assert_alike(warm: np.ndarray, cold: np.ndarray) -> None:
    """Of `best`, (token, logprob) of each token of an answer. Where the best two tokens are as near as kernels are, another one may come: both answers
    are then as likely there, and go their own ways behind it."""
    others = np.flatnonzero(warm[:, 0] != cold[:, 0])
    n = others[0] + 1 if len(others) else len(warm)
    np.testing.assert_allclose(warm[:n, 1], cold[:n, 1], rtol=0, atol=0.05)


def test_images_of_any_place_are_taken_whole(sees):
    """The text before an image ends everywhere around the end of a block."""
    seeing = sees("llava")
    with seeing.serve() as server:
        for n in (120, 180, 184, 185, 186, 246, 247, 248, 249, 250):
            messages = [user(text(n, n), seeing.picture(n), text(n + 1, 40))]
            cold = ask(server, messages)
            ask(server, [user(text(9, 50))])
            warm = ask(server, messages)
            assert warm.n_read == 1 and cold.n_read > n
            assert_alike(warm.best, cold.best)


def test_text_is_text_with_and_without_a_projector(sees, tmp_path: Path):
    seeing, where = sees("llava"), StoreSettings(folder=tmp_path)
    with prefix_server.serve(seeing.model, EXACT, where) as server:
        ask(server, [user(text(3, 600))])
        server.prefixes.flush()
    with seeing.serve(EXACT, where) as server:
        said = ask(server, [user(text(3, 600), seeing.picture(1), "what?")])
        assert said.sources["disk"] >= 600


def test_another_projector_sees_something_else(sees, tmp_path: Path):
    seeing, where = sees("llava"), StoreSettings(folder=tmp_path)
    messages = about(seeing, 1, 1)
    with seeing.serve(EXACT, where) as server:
        ask(server, messages)
        server.prefixes.flush()
    other = seeing._replace(projector=vision.llava(tmp_path / "other.gguf", seed=1))
    with other.serve(EXACT, where) as server:
        assert 230 <= ask(server, messages).sources["disk"] < 256


def damage(folder: Path, which: int) -> int:
    """Flip a bit in the last layer of a block, counted along its chain. Returns the block's first token."""
    headers = {path: read_header(path) for path in folder.rglob("*.kv")}
    parent, first = next(one.root for one in headers.values()), 0
    for _ in range(which + 1):
        path, header = max(((path, one) for path, one in headers.items() if one.link.parent == parent), key=lambda found: found[1].link.n)
        parent, first = header.link.key, first + header.link.n
    data = bytearray(path.read_bytes())
    data[header.start + int(header.layout.layer_starts(header.link.n)[-2])] ^= 1
    path.write_bytes(data)
    return first - header.link.n


def test_what_is_kept_may_end_within_an_image(sees, tmp_path: Path):
    """The first block ends there, and the next was evicted."""
    seeing, where, messages = sees("llava"), StoreSettings(folder=tmp_path), about(sees("llava"), 1, 2)
    with seeing.serve(EXACT, where) as server:
        ask(server, messages)
        server.prefixes.flush()
    for path in tmp_path.rglob("*.kv"):
        header = read_header(path)
        if header.link.parent != header.root:
            path.unlink()
    with seeing.serve(EXACT, where) as server:
        told = post(server.url, CHAT, request(messages, 1))["usage"]["edgekv"]["prefix_cache"]
    assert told["reason"] == "inside_media" and 230 <= told["tokens"] == told["at_token"] < 256


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("kind", ["llava", "qwen2vl"])
def test_a_damaged_block_of_an_image_is_computed(sees, kind: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The fault shows in the last layer, while the rest is computed. The second block begins within an image, which is computed again as a whole."""
    monkeypatch.setattr(coming, "GROUP_BYTES", 1)
    monkeypatch.setattr("edgekv.server.found.native.reading_s", lambda first, n: 0.0)  # a busy machine's folder is slower than a tiny model
    seeing, where, log = sees(kind), StoreSettings(ram_bytes=64 << 20, folder=tmp_path / "kept"), tmp_path / "log"
    messages = about(seeing, 1, 2)
    with seeing.serve(EXACT, where) as server:
        cold = ask(server, messages)
        server.prefixes.flush()
    first = damage(tmp_path / "kept", which)
    with seeing.serve(EXACT, where, log_file=log) as server:
        said = ask(server, messages)
        assert log.read_text().count("are read again") == 1
        assert said.sources["disk"] == first if which != 1 else 230 < said.sources["disk"] < 256
        np.testing.assert_allclose(said.best, cold.best, rtol=0, atol=0.02)
        ask(server, [user(text(9, 50))])
        assert ask(server, messages).n_read == 1, "it is kept again"


def test_slots_of_one_cache_share_the_cells_of_an_image(sees):
    for kind in ("llava", "qwen2vl"):
        seeing = sees(kind)
        messages = about(seeing, 1, 2)
        with seeing.serve(store=None, n_slots=2, n_ctx=1024, extra=("--kv-unified",)) as server:
            first = ask(server, messages, id_slot=0)
            said = ask(server, messages, id_slot=1)
            assert said.sources["shared"] == first.n_read
            np.testing.assert_allclose(said.best, first.best, rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", ["llava", "qwen2vl"])
@pytest.mark.parametrize("store", [None, StoreSettings()], ids=["slots", "store"])
def test_what_slots_share_ends_within_no_image(sees, kind: str, store: StoreSettings | None):
    """Both prompts have an image at whose end their common tokens end; the group of cells that is shared last would end within it."""
    seeing = sees(kind)

    def asked(question: str) -> list[dict]:
        return [user(text(1, 230), seeing.picture(1), question)]

    with seeing.serve(store=store, n_slots=2, n_ctx=2048, extra=("--kv-unified",)) as server:
        ask(server, asked("what is there?"), id_slot=0)
        said = ask(server, asked("and who?"), id_slot=1)
        assert 0 < said.sources["shared"] <= 240
    with seeing.serve(store=None) as server:
        np.testing.assert_allclose(said.best, ask(server, asked("and who?")).best, rtol=0, atol=0.02)


@pytest.mark.usefixtures("single_precision")
@KINDS
def test_two_that_ask_about_one_image_at_the_same_time_are_answered(sees, kind: str):
    seeing = sees(kind)
    with seeing.serve(n_slots=2) as server:
        cold = ask(server, about(seeing, 1, 2))
    with seeing.serve(n_slots=2) as server, ThreadPoolExecutor(2) as pool:
        for said in pool.map(lambda messages: ask(server, messages), [about(seeing, 1, 2)] * 2):
            np.testing.assert_allclose(said.best, cold.best, rtol=0, atol=0.02)


def test_what_cannot_be_used_is_said_in_a_sentence(sees, tmp_path: Path):
    seeing = sees("llava")
    with seeing.serve() as server:
        marker = shown_at(server, "/props")["media_marker"]
        ends = {"prompt": {"prompt_string": f"ab{marker}", "multimodal_data": [base64.b64encode(picture(1)).decode()]}, "n_predict": 4}
        for path, body, why in (
            ("/completion", ends, "the prompt ends with an image or a sound; put text after it"),
            (CHAT, request([user("x", b"no image", "y")]), "Failed to load image or audio file"),
        ):
            reply = send(server.url, path, body)
            assert reply.status == 400 and reply.body["error"]["message"] == why
        assert ask(server, about(seeing, 1, 1)).n_read > 1
    for file, why in ((seeing.model, "is not a projector"), (tmp_path / "none.gguf", "there is no file"),
                      (vision.llava(tmp_path / "small.gguf", n_out=64), "mismatch between text model")):
        with pytest.raises(EdgeKVError, match=why):
            seeing._replace(projector=file).serve().start()


# ---- the numbers that stand for media ---------------------------------------------------------------------------------------------------


def told(*media: Medium, n: int = 40) -> SequenceTokens:
    tokens = np.arange(n, dtype=np.int32)
    for medium in media:
        tokens[medium.first : medium.first + medium.n] = -1
    return SequenceTokens(0, 0, tokens, (), media=media, at=np.tile(np.arange(n, dtype=np.int32), (3, 1)))


def test_numbers_are_no_tokens_and_tell_media_apart():
    one = media_numbers(b"projector", Medium(7, 3000, "an image"))
    assert one.dtype == np.int32 and (one < 0).all() and len(set(one.tolist())) > 2990
    np.testing.assert_array_equal(one, media_numbers(b"projector", Medium(90, 3000, "an image")), "wherever it stands")
    for other in (media_numbers(b"projector", Medium(7, 3000, "an image!")), media_numbers(b"projector!", Medium(7, 3000, "an image")),
                  media_numbers(b"projector", Medium(7, 3001, "an image"))[:3000]):
        assert np.mean(one == other) < 0.01, "every token differs"


def test_prefixes_end_within_no_medium():
    media = (Medium(3, 4, ""), Medium(7, 2, ""), Medium(20, 5, ""))
    assert [whole_media(media, n) for n in (0, 3, 4, 6, 7, 8, 9, 10, 20, 24, 25, 99)] == [0, 3, 3, 3, 7, 7, 9, 10, 20, 20, 25, 99]


def test_only_the_text_before_media_counts_until_their_projector_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(b"weights")
    go = threading.Event()
    monkeypatch.setattr(digests, "digest_of_model", lambda path: (go.wait(20), b"digest")[1])
    media = Media()
    prompt, expects = told(Medium(10, 8, "one"), Medium(36, 8, "two")), threading.Thread(target=media.expect, args=[str(file)])
    expects.start()
    before = media.numbered(prompt)
    assert before.tokens.tolist() == list(range(10)) and before.media == () and before.at is not None and before.at.shape == (3, 10)
    go.set()
    expects.join()
    known = media.numbered(prompt)
    assert (known.tokens[10:18] < 0).all() and (known.tokens[36:] < -1).all() and known.tokens[18] == 18 and known.media == prompt.media
    text_alone = told()
    assert media.numbered(text_alone) is text_alone


def test_a_projector_that_changed_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(b"weights")
    media, prompt = Media(), told(Medium(10, 8, "one"))
    media.expect(str(file))
    assert len(media.numbered(prompt).tokens) == 40
    file.write_bytes(b"other weights")
    with caplog.at_level(logging.WARNING, "edgekv"):
        assert [len(media.numbered(prompt).tokens) for _ in range(2)] == [10, 10]
    assert sum("changed after it was loaded" in record.getMessage() for record in caplog.records) == 1
