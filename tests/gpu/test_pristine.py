"""Mode exact with room for everything gives stock's logits, within the spread of stock's own two kernels on this card."""

import numpy as np
import pytest
from support.decoding import kld, top_gap

STEPS = 48


@pytest.fixture
def compared(decoded, synthetic):
    """Largest KLD of exact from stock, and of stock's other kernel (for a quantised cache: of stock's f16) from stock."""

    def compare(kind: str, prompt: int = 600, cache: str = "f16", **shape: int):
        path = synthetic(kind, n_ctx_train=8192, **shape)
        stock = decoded(path, "off", prompt=prompt, steps=STEPS, type=cache, logits=True)
        np.savez(path.with_suffix(f".{cache}.npz"), tokens=stock["tokens"])
        common = {"prompt": prompt, "steps": STEPS, "logits": True, "tokens": path.with_suffix(f".{cache}.npz")}
        other = decoded(path, "off", **common, **({"noflash": True} if cache == "f16" else {"type": "f16"}))
        exact = decoded(path, "exact", type=cache, **common)
        assert exact["hooked"].any() and exact["n_hooked"] >= STEPS, "our nodes did not attend every step"
        spread = kld(stock["logits"], other["logits"]).max()
        assert np.isfinite(exact["logits"]).all(), "a logit is no number"
        found = kld(stock["logits"], exact["logits"]).max()
        print(f"{kind} {cache} {shape}: exact {found:.2e}, stock's own spread {spread:.2e}")
        assert found <= (2 * spread if cache == "f16" else spread), "exact is farther from stock than stock from itself"
        clear = top_gap(stock["logits"]) > 2 * np.abs(stock["logits"] - other["logits"]).max()
        assert (stock["best"] == exact["best"])[clear].all(), "another best token, where stock's is clear"

    return compare


@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 112, 128, 192, 256])
def test_head_sizes(compared, head_dim: int):
    compared("llama", head_dim=head_dim)


@pytest.mark.parametrize(("n_head", "n_head_kv"), [(1, 1), (7, 1), (8, 1), (9, 3)])
def test_query_groups(compared, n_head: int, n_head_kv: int):
    compared("llama", n_head=n_head, n_head_kv=n_head_kv)


@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "gpt-oss"])
def test_architectures(compared, kind: str):
    compared(kind)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_quantised_cache(compared, head_dim: int):
    compared("llama", cache="q8_0", head_dim=head_dim)


@pytest.mark.parametrize("prompt", [27, 61, 113, 482, 577, 1110, 1541, 2047, 3330])
def test_odd_lengths(compared, prompt: int):
    compared("llama", prompt=prompt)
