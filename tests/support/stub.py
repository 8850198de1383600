"""A model that says what it is told: a small GGUF whose answers are given texts, cut into given tokens, under any chat template.

Each token's embedding is one unit of a vector, its *state*; attention and the feed-forward network add nothing; the output
layer sends each state to the token that follows it. So the answer depends on the last token of the prompt alone. Where that token
may not follow, all others are as likely, and spaces less."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from support.adapters import finish

CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}")
CALLING, THINKING = (Path(__file__).with_name(f"{name}.jinja").read_text() for name in ("tools", "thinking"))
"""ChatML with tools, and with thinking besides."""
CHANNELS = ("{% for m in messages %}{{'<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>'}}{% endfor %}"
            "{% if add_generation_prompt %}{{'<|start|>assistant'}}{% endif %}{# <|channel|> #}")
"""llama.cpp reads answers under it as gpt-oss's, whose texts have channels."""
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
STATES, HIDDEN, KV_WIDTH, LAYERS = 512, 256, 128, 2


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


LETTERS = _byte_letters()


def spelled(piece: bytes) -> str:
    """The piece as the vocabulary writes it."""
    return "".join(LETTERS[byte] for byte in piece)


def cut(text: str | bytes, longest: int = 7) -> list[bytes]:
    """`text` in pieces of two bytes or more, all different, so that each names its place; cuts may fall inside a character."""
    data = text if isinstance(text, bytes) else text.encode()
    draw, pieces, begin = random.Random(1), [], 0
    while begin < len(data):
        length = max(2, draw.randint(1, longest))
        while data[begin:begin + length] in pieces and begin + length < len(data):
            length += 1
        if len(data) - begin - length == 1:
            length += 1
        pieces.append(data[begin:begin + length])
        begin += length
    assert len(set(pieces)) == len(pieces), f"the end of {text!r} was said before"
    return pieces


def write_stub(path: Path, answers: str | Sequence[bytes] | Mapping[str, Sequence[bytes]], template: str | None = CHATML, *,
               specials: Sequence[str] = SPECIALS, eos: str = "<|im_end|>", n_ctx: int = 32768,
               pre_tokenizer: str = "default", control: bool = True, **strings: str) -> Path:
    """Writes the model to `path`. `answers`: a text, its pieces, or {key: pieces}, where a key of one byte answers a prompt that
    ends with this byte and "" every other prompt. `specials` are tokens of their own (user-defined ones, visible in text, if not
    `control`); an answer may hold them as pieces. `strings` are further metadata."""
    if isinstance(answers, str):
        answers = cut(answers)
    if not isinstance(answers, Mapping):
        answers = {"": answers}
    kind = gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED
    tokens = [*LETTERS, spelled(b"zq"), *specials]
    types = [gguf.TokenType.NORMAL] * 257 + [kind] * len(specials)
    ids = {token: i for i, token in enumerate(tokens)}
    state_of: dict[int, int] = {}  # of a token, where it is not 0
    follows: list[tuple[int, int]] = []  # state, token
    n_states = 1
    for key, pieces in answers.items():
        state = 0
        if key:
            state = state_of[ids[spelled(key.encode())]] = n_states
            n_states += 1
        for piece in pieces:
            token = piece.decode() if piece.decode(errors="replace") in specials else spelled(piece)
            if token not in ids:
                ids[token] = len(tokens)
                tokens.append(token)
                types.append(gguf.TokenType.NORMAL)
            assert ids[token] not in state_of, f"{piece!r} is said twice"
            follows.append((state, ids[token]))
            state = state_of[ids[token]] = n_states
            n_states += 1
        follows.append((state, ids[eos]))
    assert n_states <= STATES, f"{n_states} pieces are too many"
    embedding, output = (np.zeros((len(tokens), STATES), np.float32) for _ in range(2))
    for token in range(len(tokens)):
        embedding[token, state_of.get(token, 0)] = 1
    output[[ids[spelled(space)] for space in (b" ", b"\t", b"\n", b"\r")]] = -0.1
    for state, token in follows:
        output[token, state] = 1

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_type("model")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(STATES)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_file_type(0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{LETTERS[ord('z')]} {LETTERS[ord('q')]}"])
    writer.add_bos_token_id(ids[specials[0]])
    writer.add_eos_token_id(ids[eos])
    writer.add_add_bos_token(False)
    if template:
        writer.add_chat_template(template)
    for name, value in strings.items():
        writer.add_string(name, value)
    random_rows = np.random.default_rng(0)
    for name, tensor in {"token_embd": embedding, "output": output, "output_norm": np.ones(STATES)}.items():
        writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))
    for layer in range(LAYERS):
        shapes = {"attn_q": (STATES, STATES), "attn_k": (KV_WIDTH, STATES), "attn_v": (KV_WIDTH, STATES)}
        zeros = {"attn_output": (STATES, STATES), "ffn_gate": (HIDDEN, STATES), "ffn_up": (HIDDEN, STATES), "ffn_down": (STATES, HIDDEN)}
        tensors = {"attn_norm": np.ones(STATES), "ffn_norm": np.ones(STATES),
                   **{name: random_rows.standard_normal(shape) * 0.05 for name, shape in shapes.items()},
                   **{name: np.zeros(shape) for name, shape in zeros.items()}}
        for name, tensor in tensors.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor.astype(np.float32))
    return finish(writer, path)
