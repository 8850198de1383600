"""A user's program: `.ci/types` checks it against the package's public names. A line that is wrong says so, and is an error where it is not."""

import edgekv
from edgekv import ConfigError, DoesNotFit, KvOptions, Llama, ModelError

llama: Llama = edgekv.Llama("model.gguf", n_ctx=8192, kv="sparse", sample_budget=1000, kv_vram="2GiB", verbose=False)
mode: str = llama.kv.mode.value
edgekv.install(kv="exact", n_ctx=4096)
edgekv.runtime.set_defaults(KvOptions(mode="sparse"))
caught: tuple[type[ValueError], type[ValueError], type[MemoryError]] = (ConfigError, ModelError, DoesNotFit)
with edgekv.Llama("model.gguf") as other:
    other.eval([1, 2, 3])
    tokens: list[int] = list(other.generate([1], temp=0.5))
    other.create_completion("a", max_tokens="9")  # type: ignore[arg-type]
edgekv.Llama("model.gguf", n_ctx="8192")  # type: ignore[arg-type]
edgekv.Llama("model.gguf", resolutoin=5)  # type: ignore[call-arg]
