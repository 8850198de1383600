"""Models of ours in the place of those that upstream's tests fetch, and the options that their servers start with."""

from pathlib import Path

from support.adapters import lora
from support.stub import SPECIALS, write_stub
from support.vision import gemma3

from edgekv.models import synth
from edgekv.models.synth_file import SyntheticShape

TEXT, FILLS, PROJECTOR = "text.gguf", "fills.gguf", "projector.gguf"
STANDS_FOR = {"ggml-org/test-model-stories260K": TEXT, "ggml-org/test-model-stories260K-infill": FILLS, "ggml-org/stories15M_MOE": TEXT,
              "ggml-org/tinygemma3-GGUF:Q8_0": TEXT, None: TEXT}
"""Our model for each of the tests' repositories. None: a router without models, which here is a server with one."""
SEES = "ggml-org/tinygemma3-GGUF:Q8_0"
OURS = {"--host": "--host", "--port": "--port", "--alias": "--alias", "--api-key": "--api-key", "--cors-origins": "--cors", "-ctk": "-ctk",
        "-ctv": "-ctv", "--n-gpu-layers": "--gpu-layers", "--threads": "--threads"}
"""Options that stand before the -- of `edgekv serve`."""
SWITCHES = ("--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--swa-full", "--slots", "--no-slots", "--verbose",
            "--context-shift", "--no-ui", "--no-models-autoload", "--jinja", "--no-jinja", "--no-mmproj", "--no-cache-idle-slots", "--ui-mcp-proxy",
            "--backend_sampling")


def pairs(arguments: list[str]) -> list[tuple[str, str | None]]:
    """(name, value); a switch has none."""
    rest = iter(arguments)
    return [(name, None if name in SWITCHES else next(rest)) for name in rest]


def options(arguments: list[str], models: Path, ours: bool) -> list[str]:
    """llama-server's own options, or those of `edgekv serve` if `ours`. Raises KeyError for a model that nothing stands for."""
    given = pairs(arguments)
    said = dict(given)
    repository = said.get("--hf-repo")
    if repository == "ggml-org/models":
        raise KeyError(said["--hf-file"])
    model = str(models / STANDS_FOR[repository])
    rest = [(name, value) for name, value in given if name not in ("--hf-repo", "--hf-file")]
    if repository == SEES and "--no-mmproj" not in said:
        rest.append(("--mmproj", str(models / PROJECTOR)))
    if not {"--chat-template", "--chat-template-file"} & said.keys():  # the models that ours stand for have none, and then this is llama.cpp's
        rest.append(("--chat-template", "chatml"))
    if not ours:
        return ["--model", model, "--threads", "1", *flat(rest)]
    slots = int(said.get("--parallel") or 1)
    before = [("--parallel", str(slots)), ("--threads", "1"), ("--log-file", "-")]
    if "--ctx-size" in said:  # llama.cpp's is for all slots, unless they share a cache; ours for each
        before.append(("--ctx", str(int(said["--ctx-size"]) // (1 if "--kv-unified" in said else slots))))
    if "--cache-ram" in said:
        before.append(("--cache-ram", said["--cache-ram"]))
    before += [(OURS[name], value) for name, value in rest if name in OURS]
    behind = [(name, value) for name, value in rest if name not in OURS and name not in ("--parallel", "--ctx-size", "--cache-ram")]
    return [model, *flat(before), "--", *flat(behind)]


def flat(given: list[tuple[str, str | None]]) -> list[str]:
    return [word for pair in given for word in pair if word is not None]


def write(folder: Path) -> None:
    """The models, and what upstream's tests would fetch by address, under its name."""
    folder.mkdir()
    shape = SyntheticShape(n_ctx_train=2048)
    synth.llama(folder / TEXT, shape)
    synth.llama(folder / "stories15M-q4_0.gguf", shape, seed=1)
    lora(folder / "moe_shakespeare15M.gguf", shape)
    gemma3(folder / PROJECTOR)
    fills = [f"<|fim_{part}|>" for part in ("prefix", "suffix", "middle")]
    write_stub(folder / FILLS, "Jimmy had a small and shiny llama in the park.", specials=[*SPECIALS, *fills], n_ctx=2048)
