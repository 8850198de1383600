"""The 256 most likely tokens of mode exact are stock's, at 4K and 32K. Stock chooses; exact reads the same tokens and must find
each next one the most likely too, which is what greedy decoding would have given. Where stock's two best lie closer together than
its own two kernels do, either is right."""

import numpy as np
import pytest

STEPS = 256


@pytest.fixture
def identical(decoded, tmp_path, device):
    def compare(path, prompt: int, vram: int | None, text: bool = False):
        steps = STEPS if device == "cuda" else 16
        common = {"prompt": prompt, "steps": steps, "logits": True, **({"text": True} if text else {})}
        stock = decoded(path, "off", **common)
        kept = tmp_path / "tokens.npz"
        np.savez(kept, tokens=stock["tokens"])
        other = decoded(path, "off", tokens=kept, noflash=True, **common)
        spread = np.abs(stock["logits"] - other["logits"]).max(axis=1)
        del other
        exact = decoded(path, "exact", tokens=kept, **common, **({"vram": vram} if vram else {}))
        assert exact["n_hooked"] >= steps, "our nodes did not attend every step"
        same, close = stock["best"] == exact["best"], stock["gap"] <= 2 * spread
        print(f"{path.stem} at {prompt}, budget {vram}: {same.sum()} of {steps} the same, "
              f"{(~same & close).sum()} closer than stock's own kernels")
        assert (same | close).all(), f"first at step {np.flatnonzero(~(same | close))[0]}"

    return compare


@pytest.mark.parametrize("mib", [None, 48])
def test_default_model_at_4k(identical, default_model, mib):
    """All of K and V fit, and then half of their 96 MiB do not."""
    identical(default_model, 4096, None if mib is None else mib << 20, text=True)


@pytest.mark.parametrize("mib", [None, 160])
def test_4k(identical, shaped, device, mib):
    name, prompt = ("qwen3-0.6b", 4096) if device == "cuda" else ("tiny", 700)
    identical(shaped(name, 40960), prompt, None if mib is None else mib << 20)


@pytest.mark.parametrize("mib", [None, 1024])
def test_32k(identical, shaped, device, mib):
    name, prompt = ("qwen3-0.6b", 32768) if device == "cuda" else ("tiny", 1300)
    identical(shaped(name, 40960), prompt, None if mib is None else mib << 20)
