"""Embeddings and rankings: as long as the context, in the forms that their clients ask for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from support.clients import Reply, post, send
from support.prefix_server import serve

from edgekv.models import synth
from edgekv.models.synth_file import SyntheticFile
from edgekv.server.server import Server

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TEXTS = ["a cat", "a dog", "quite another text"]


@pytest.fixture
def embedding(tiny: Path) -> Iterator[Server]:
    with serve(tiny, store=None, extra=("--embeddings", "--pooling", "mean")) as server:
        yield server


def refusal(reply: Reply) -> dict:
    assert reply.status == 400, reply.text
    return reply.body["error"]


def test_texts_of_the_whole_context(embedding: Server):
    """The batch of answers has 512 tokens."""
    vectors = [post(embedding.url, EMBEDDINGS, {"input": [7] * n})["data"][0]["embedding"] for n in (600, 2040)]
    assert all(any(vector) for vector in vectors)
    error = refusal(send(embedding.url, EMBEDDINGS, {"input": [7] * 3000}))
    assert error["code"] == "context_length_exceeded" and error["param"] == "input" and "2048 tokens" in error["message"]


def test_openai_embeds_a_list(embedding: Server):
    """The client asks for base64 by itself."""
    client = openai.OpenAI(base_url=f"{embedding.url}/v1", api_key="none", max_retries=0)
    vectors = [one.embedding for one in client.embeddings.create(model="x", input=TEXTS).data]
    plain = client.embeddings.create(model="x", input=TEXTS, encoding_format="float")
    assert [one.index for one in plain.data] == [0, 1, 2] and plain.usage.prompt_tokens == plain.usage.total_tokens > 0
    for vector, text, one in zip(vectors, TEXTS, plain.data, strict=True):
        alone = client.embeddings.create(model="x", input=text).data[0].embedding
        assert np.allclose(vector, one.embedding, atol=1e-6) and np.allclose(vector, alone, atol=1e-3) and abs(np.linalg.norm(vector) - 1) < 1e-3
    with pytest.raises(openai.BadRequestError, match="'dimensions' is not supported"):
        client.embeddings.create(model="x", input="a", dimensions=8)


@pytest.fixture
def ranking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    def finish(self: SyntheticFile) -> Path:
        self.normal("cls.output.weight", 1, self.shape.n_embd)
        return original(self)

    original = SyntheticFile.finish
    monkeypatch.setattr(SyntheticFile, "finish", finish)
    path = synth.write("qwen3", tmp_path / "ranks.gguf")
    with serve(path, store=None, extra=("--reranking",)) as server:
        yield server


def test_documents_are_ranked(ranking: Server):
    asked = {"query": "which?", "documents": TEXTS}
    found = post(ranking.url, RERANK, asked)["results"]
    scores = [one["relevance_score"] for one in found]
    assert scores == sorted(scores, reverse=True) and sorted(one["index"] for one in found) == [0, 1, 2] and "document" not in found[0]
    objects = {"query": "which?", "documents": [{"text": text, "id": 5} for text in TEXTS], "return_documents": True, "top_n": 2}
    best = post(ranking.url, RERANK, objects)["results"]
    assert [(one["index"], one["document"]) for one in best] == [(one["index"], {"text": TEXTS[one["index"]]}) for one in found[:2]]
    assert "a document without a 'text'" in refusal(send(ranking.url, RERANK, {**asked, "documents": [{"image": "x"}]}))["message"]
    assert "must be a list of texts" in refusal(send(ranking.url, RERANK, {**asked, "documents": [5]}))["message"]
    error = refusal(send(ranking.url, RERANK, {**asked, "documents": ["x y " * 3000]}))
    assert error["code"] == "context_length_exceeded" and error["param"] == "documents"
