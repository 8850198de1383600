"""The shared options become KvOptions: from the command line, else from the environment, else by default."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from edgekv.cli.common.shared_options import kv_options, recall_option, split_kv_options
from edgekv.common.enums import CacheType, KvMode, SketchKind
from edgekv.common.errors import ConfigError, CudaUnavailable
from edgekv.config import Attend, KvOptions, PlacementOptions, SelectionOptions
from edgekv.planning import devices
from edgekv.policies import POLICIES
from edgekv.prefix_cache.settings import RecallSettings
from edgekv.tiering.prefetch import PREFETCHERS

pytestmark = pytest.mark.usefixtures("no_variables")


MEASURED = devices.measured_mode(devices.place(KvOptions(device="cpu")))


@click.command()
@kv_options
def taken(**_: Any) -> None:
    """A command that takes the options, and does nothing."""


def parse(*arguments: str, **environment: str) -> dict[str, Any]:
    """The options that `split_kv_options` takes from a command line."""
    found: dict[str, Any] = {}

    @click.command()
    @kv_options
    def command(**settings: Any) -> None:
        found.update(split_kv_options(settings))
        assert not settings, f"nobody took {settings}"

    result = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found


def test_defaults_are_those_of_the_library():
    assert parse() == {"kv": KvOptions(mode=MEASURED), "n_ctx": None, "n_threads": None, "n_gpu_layers": None, "weights_from_disk": False}


def test_every_option_arrives():
    kv = parse("--kv", "sparse", "--resolution", "2000", "--home", "/mnt", "--kv-budget", "1.5GiB", "--sketch", "b3", "--policy", "lru+anchor",
               "--prefetch", "rope", "--page-tokens", "32", "--type-k", "q8_0", "--type-v", "q8_0", "-t", "3", "-c", "99",
               "--gpu-layers", "7", "--kv-vram", "2GiB", "--weights-from-disk")
    assert kv == {"n_ctx": 99, "n_threads": 3, "n_gpu_layers": 7, "weights_from_disk": True, "kv": KvOptions(
        mode=KvMode.SPARSE, resolution=2000.0, home="/mnt", kv_budget=3 << 29, sketch=SketchKind.B3, policy="lru+anchor", prefetch="rope",
        page_tokens=32, type_k=CacheType.Q8_0, type_v=CacheType.Q8_0, kv_vram=2 << 30)}
    kv = parse("--kv", "sparse", "--sketch", "none", "--attend", "1024")["kv"]
    assert (kv.selection.sketch, kv.selection.attend) == (SketchKind.NONE, Attend(tokens=1024))
    assert parse("--device", "cpu")["kv"].placement.device == "cpu"
    assert parse("--home", "/some/folder")["kv"].cache.home == parse(EDGEKV_HOME="/some/folder")["kv"].cache.home == Path("/some/folder")


def test_the_command_line_goes_before_the_environment():
    variables = {"EDGEKV_KV": "sparse", "EDGEKV_RESOLUTION": "500.5", "EDGEKV_KV_BUDGET": "1MiB", "EDGEKV_ATTEND": "5%",
                 "EDGEKV_SPLIT": "uniform"}
    kv = parse(**variables)["kv"]
    assert kv == KvOptions.from_env(mode="sparse", resolution=500.5, kv_budget=1 << 20, attend="5%", split="uniform")
    kv = parse("--resolution", "16000", "--home", "/mnt", "--kv-budget", "auto", **variables)["kv"]
    assert (kv.selection.resolution, kv.placement.kv_budget, kv.selection.attend.share) == (16000, None, 0.05)
    assert parse("--home", "/mnt", "--kv-budget", "0", **variables)["kv"].placement.kv_budget == 0
    assert parse("--kv", "exact", **variables)["kv"].mode is KvMode.EXACT, "variables for mode sparse do not disturb the others"


@pytest.mark.parametrize("name", ["attend", "resolution", "sketch", "kv-budget", "kv-prompts", "policy", "prefetch"])
def test_options_without_effect_are_refused(name):
    value = {"attend": "5%", "resolution": "900", "sketch": "b3", "kv-budget": "auto", "kv-prompts": "sparse", "policy": "ema",
             "prefetch": "none"}[name]
    modes = "modes sparse and evict" if name in ("policy", "resolution") else "mode sparse"
    with pytest.raises(ConfigError, match=f"--{name} works in {modes} only, and the mode is off; use --kv sparse"):
        parse("--kv", "off", f"--{name}", value)


def test_what_is_attended_without_sketches_and_how_finely_with_them():
    """Each option is refused beside the other's sketch on the command line; as a variable it may be without effect."""
    with pytest.raises(ConfigError, match="--attend works without sketches only, and the sketch is b3; use --resolution, or --sketch none"):
        parse("--kv", "sparse", "--attend", "10%")
    with pytest.raises(ConfigError, match="--resolution needs sketches, and the sketch is none; use --attend, or --sketch b3"):
        parse("--kv", "sparse", "--resolution", "1000", "--sketch", "none")
    with pytest.raises(ConfigError, match="--resolution needs sketches"):
        parse("--resolution", "1000", EDGEKV_KV="sparse", EDGEKV_SKETCH="none")
    assert parse("--kv", "sparse", EDGEKV_ATTEND="10%")["kv"].selection.attend.share == 0.1
    assert parse("--kv", "sparse", "--sketch", "none", EDGEKV_RESOLUTION="10")["kv"].selection.resolution == 10


@pytest.mark.parametrize("value", ["0", "0.9", "-4", "nan", "inf", "much", "", None, "1e999"], ids=str)
def test_a_resolution_is_a_number_from_1(value):
    with pytest.raises(ConfigError, match=r"it must be a number from 1 to 1e\+09, such as 2000"):
        KvOptions(resolution=value)
    assert KvOptions(resolution=1).selection.resolution == 1.0 and isinstance(KvOptions(resolution="2e3").selection.resolution, float)


def test_what_is_kept_is_read_whole_or_as_a_sample():
    kept = parse("--kv", "evict", "--keep", "2048")["kv"]
    assert not kept.samples_kept and not kept.with_(mode="sparse", resolution=1000).with_(mode="evict").samples_kept
    sampled = parse("--kv", "evict", "--keep", "2048", "--resolution", "500")["kv"]
    assert sampled.samples_kept and sampled.selection.resolution == 500 and not sampled.with_(mode="sparse").samples_kept
    assert parse("--kv", "evict", EDGEKV_RESOLUTION="500")["kv"].samples_kept
    with pytest.raises(ConfigError, match="a resolution needs sketches, and the sketch is none"):
        parse("--kv", "evict", EDGEKV_RESOLUTION="500", EDGEKV_SKETCH="none")
    with pytest.raises(ConfigError, match="--error works in mode sparse only, and the mode is evict; use --kv sparse"):
        parse("--kv", "evict", "--error", "2%")


def test_an_error_or_a_resolution():
    assert parse("--kv", "sparse", "--error", "2%")["kv"].selection.error == 0.02
    assert parse("--kv", "sparse", EDGEKV_ERROR="2%")["kv"].selection.error == 0.02
    assert parse("--kv", "exact", EDGEKV_ERROR="2%")["kv"].mode is KvMode.EXACT, "a variable may be without effect"
    assert parse("--kv", "sparse", "--resolution", "300", EDGEKV_ERROR="2%")["kv"] == KvOptions(mode="sparse", resolution=300)
    assert parse("--kv", "sparse", "--error", "3%", EDGEKV_RESOLUTION="300")["kv"] == KvOptions(mode="sparse", error=0.03)
    with pytest.raises(ConfigError, match="--error chooses a resolution for each layer and head, and --resolution is one for all; give one"):
        parse("--kv", "sparse", "--error", "2%", "--resolution", "300")
    with pytest.raises(ConfigError, match="--error works in mode sparse only, and the mode is exact; use --kv sparse"):
        parse("--kv", "exact", "--error", "2%")
    with pytest.raises(ConfigError, match="--error needs sketches, and the sketch is none; use --attend, or --sketch b3"):
        parse("--kv", "sparse", "--error", "2%", "--sketch", "none")
    for value in ("0", "51%", "much"):
        result = CliRunner().invoke(taken, ["--error", value])
        assert result.exit_code == 2 and "it must be a share above 0% and up to 50%" in " ".join(result.output.split())


@pytest.mark.parametrize("of_file", ["error", "resolution"])
def test_the_file_goes_behind_the_other_of_the_two(of_file):
    """A resolution in the file of options gives way to an error on the command line or in a variable, and the other way round."""
    values = {"error": ("2%", KvOptions(mode="sparse", error=0.02)), "resolution": ("300", KvOptions(mode="sparse", resolution=300))}
    other = "resolution" if of_file == "error" else "error"
    found: list[KvOptions] = []

    @click.command()
    @kv_options
    def command(**settings: Any) -> None:
        found.append(split_kv_options(settings)["kv"])

    file = {"default_map": {of_file: values[of_file][0]}}
    for arguments, environment in (([], {}), ([f"--{other}", values[other][0]], {}), ([], {f"EDGEKV_{other.upper()}": values[other][0]})):
        result = CliRunner().invoke(command, ["--kv", "sparse", *arguments], env=environment, catch_exceptions=False, **file)
        assert result.exit_code == 0, result.output
    assert found == [values[of_file][1], values[other][1], values[other][1]]


@pytest.mark.parametrize("values", [{"exact_tokens": -1}, {"error_every": -1}, {"error_every": 1.5}, {"recent_tokens": None}], ids=str)
def test_numbers_of_tokens_are_whole(values):
    with pytest.raises(ConfigError, match="it must be a whole number from 0"):
        KvOptions(**values)


@pytest.mark.parametrize("arguments", [("--coverage", "95%"), ("--split", "uniform"), ("--blend", "0.1")], ids=str)
def test_options_that_there_are_no_more(arguments):
    result = CliRunner().invoke(taken, ["--kv", "sparse", *arguments])
    assert result.exit_code == 2 and f"No such option '{arguments[0]}'" in result.output
    with pytest.raises(ConfigError, match="there is no KV option 'coverage'; the options are: mode,"):
        KvOptions.from_env(coverage=0.9)


def test_what_evict_keeps():
    assert parse("--kv", "evict", "--keep", "2048", "--policy", "ema")["kv"].keep_tokens == 2048
    assert parse("--kv", "evict", EDGEKV_KEEP="64MiB")["kv"].eviction.keep.bytes == 64 << 20
    with pytest.raises(ConfigError, match="--keep works in mode evict only, and the mode is sparse; use --kv evict"):
        parse("--kv", "sparse", "--keep", "2048")
    with pytest.raises(ConfigError, match="runs on the processor only"):
        parse("--kv", "evict", "--device", "cuda")


@pytest.mark.parametrize("arguments, expected", [
    ((), None), (("--recall", "ram"), RecallSettings()), (("--recall", "RAM"), RecallSettings()),
    (("--recall", "kept/here"), RecallSettings(Path("kept/here"))),
], ids=str)
def test_where_exchanges_go(arguments, expected):
    found = []

    @click.command()
    @recall_option
    def command(recall: RecallSettings | None) -> None:
        found.append(recall)

    assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    assert found == [expected]


def test_gpu_memory_from_the_environment():
    variables = {"EDGEKV_KV_VRAM": "1GiB", "EDGEKV_DEVICE": "cpu"}
    kv = parse(**variables)["kv"]
    assert (kv.placement.kv_vram, kv.placement.device) == (1 << 30, "cpu")
    assert parse("--kv-vram", "auto", "--device", "auto", **variables)["kv"] == KvOptions(mode=MEASURED)
    assert parse("--kv", "off", **variables)["kv"].placement.kv_vram == 1 << 30, "a variable may be without effect"


@pytest.mark.parametrize(("arguments", "said"), [
    (("--kv", "off", "--kv-vram", "1GiB"), "does nothing in mode off"),
    (("--device", "cpu", "--kv-vram", "auto"), "the device is cpu; leave it out, or use --device cuda"),
    (("--kv", "sparse", "--kv-budget", "1GiB"), "K and V lie in memory; leave it out, or name a folder with --home .on a GPU use --kv-vram"),
])
def test_gpu_options_without_effect_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        parse(*arguments)


@pytest.mark.parametrize("values", [{"kv_vram": 0}, {"kv_vram": -1}, {"kv_vram": 1.5}, {"device": "gpu"}, {"device": "CUDA"}], ids=str)
def test_values_that_are_not_allowed(values):
    with pytest.raises(ConfigError, match="must be a number of bytes, or auto|use one of: auto, cpu, cuda"):
        KvOptions(**values)


def test_a_gpu_in_vain(monkeypatch):
    """A GPU that was asked for is an error with its exit code; one that is merely there is a loud warning."""
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: (["Card, 1 MiB, driver 580.1"], ""))
    monkeypatch.setattr(devices, "devices", lambda kind: [])
    monkeypatch.setattr(devices, "has_cuda_build", lambda: False)
    with pytest.raises(CudaUnavailable, match="EDGEKV_CUDA=on; use --device cpu to run without it"):
        parse("--device", "cuda")
    with pytest.raises(CudaUnavailable, match="libedgekv-emulated"):
        parse(EDGEKV_DEVICE="emulated")

    @click.command()
    @kv_options
    def command(**settings: Any) -> None:
        split_kv_options(settings)

    assert "warning: THE GPU IS NOT USED (Card, 1 MiB, driver 580.1)" in CliRunner().invoke(command, []).stderr
    assert CliRunner().invoke(command, ["--device", "cpu"]).output == ""


def test_the_emulated_device_is_for_tests_only():
    assert CliRunner().invoke(taken, ["--device", "emulated"]).exit_code == 2
    assert KvOptions.from_env(device="emulated").placement.device == "emulated"


def test_the_help_names_what_there_is():
    """The help is written by hand: the registries would load NumPy for every `--help`."""
    text = {option.name: option.help for option in taken.params}
    assert "`edgekv policies` lists them" in text["policy"]
    assert {"ema", "anchor", "recent", "h2o", "snapkv"} <= set(POLICIES)  # the examples
    for name in PREFETCHERS:
        assert name in text["prefetch"]
    for option, default in (("kv", "sparse; exact on a GPU that gains little, and on a processor without AVX2"), ("attend", str(SelectionOptions.attend)),
                            ("policy", PlacementOptions.policy), ("resolution", f"{SelectionOptions.resolution:g}"), ("sketch", SelectionOptions.sketch.value)):
        assert f"[default: {default}]" in text[option]


@pytest.mark.parametrize("isa, device, mode", [("avx512", "cpu", "sparse"), ("avx2", "cpu", "sparse"), ("portable", "cpu", "exact"),
                                               ("avx512", "emulated", "exact")])
def test_who_asks_for_none_gets_the_mode_that_won(monkeypatch, request, isa: str, device: str, mode: str):
    """The measured mode is the default where nobody asks for another."""
    if device == "emulated":
        request.getfixturevalue("emulator")
    from edgekv import _native

    monkeypatch.setattr(_native, "isa", lambda: isa)
    assert devices.measured_mode(devices.place(KvOptions(device=device))) is KvMode(mode)
    assert parse("--kv", "exact")["kv"].mode is KvMode.EXACT
    assert parse(EDGEKV_KV="off")["kv"].mode is KvMode.OFF
    assert parse(EDGEKV_DEVICE=device)["kv"].mode is KvMode(mode)
