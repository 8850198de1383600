"""The shared options become KvOptions: from the command line, else from the environment, else by default."""

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from edgekv import _native
from edgekv.cli.common.shared_options import settings_of, split_kv_options
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, CudaUnavailable
from edgekv.config import KvOptions
from edgekv.planning import devices

pytestmark = pytest.mark.usefixtures("no_variables")


MEASURED = devices.measured_mode(devices.place(KvOptions(attention_device="cpu")))


@click.command()
@settings_of("plan")
def taken(**_: Any) -> None:
    """A command that takes the options, and does nothing."""


def invoked(*arguments: str, **environment: str) -> tuple[dict[str, Any], Result]:
    """The options that `split_kv_options` takes from a command line, and what it says."""
    found: dict[str, Any] = {}

    @click.command()
    @settings_of("plan")
    def command(**settings: Any) -> None:
        found.update(split_kv_options(settings))
        assert set(settings) == {"parallel", "cache_ram", "mmproj", "lora", "control_vector", "model_draft"}, f"nobody took {settings}"

    result = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found, result


def parse(*arguments: str, **environment: str) -> dict[str, Any]:
    return invoked(*arguments, **environment)[0]


def test_defaults_are_those_of_the_library():
    assert parse() == {"kv": KvOptions(mode=MEASURED), "n_ctx": None, "n_threads": None, "n_gpu_layers": None, "weights_from_disk": False}


def test_the_command_line_goes_before_the_environment():
    variables = {"EDGEKV_KV": "sparse", "EDGEKV_SAMPLE_BUDGET": "500.5", "EDGEKV_KV_BUDGET": "1MiB", "EDGEKV_SPLIT": "layer"}
    kv = parse(**variables)["kv"]
    assert kv == KvOptions.from_env(mode="sparse", sample_budget=500.5, kv_budget=1 << 20, split="layer")
    kv = parse("--sample-budget", "16000", "--kv-dir", "/mnt", "--kv-budget", "auto", **variables)["kv"]
    assert (kv.selection.sample_budget, kv.placement.kv_budget, kv.eviction.split.value) == (16000, None, "layer")
    assert parse("--kv-dir", "/mnt", "--kv-budget", "0", **variables)["kv"].placement.kv_budget == 0
    assert parse("--kv", "exact", **variables)["kv"].mode is KvMode.EXACT, "variables for mode sparse do not disturb the others"


ONE_MODE = {"kv-budget": "auto", "kv-prompts": "sparse", "prefetch": "none", "target-error": "2%"}


@pytest.mark.parametrize(("words", "said"), [
    *((f"--kv off --{name} {value}", f"--{name} works in mode sparse only, and the mode is off; use --kv sparse") for name, value in ONE_MODE.items()),
    *((f"--kv off --{name}", f"--{name.split()[0]} works in modes sparse and evict only, and the mode is off") for name in ("sample-budget 900", "policy ema")),
    ("--kv sparse --evict-to 2048", "--evict-to works in mode evict only, and the mode is sparse; use --kv evict"),
    ("--kv evict --target-error 2%", "--target-error works in mode sparse only, and the mode is evict; use --kv sparse"),
    ("--kv evict --attention-device cuda", "runs on the processor only"),
    ("--kv sparse --target-error 2% --sample-budget 300",
     "--target-error chooses a sample budget for each layer and head, and --sample-budget is one for all; give one"),
    ("--kv off --kv-vram 1GiB", "does nothing in mode off"),
    ("--attention-device cpu --kv-vram auto", "the device is cpu; leave it out, or use --attention-device cuda"),
    ("--kv sparse --kv-budget 1GiB", "K and V lie in memory; leave it out, or name a folder with --kv-dir (on a GPU use --kv-vram"),
])
def test_options_without_effect_are_refused(words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(*words.split())


def test_a_variable_may_be_without_effect():
    assert parse("--kv", "exact", EDGEKV_TARGET_ERROR="2%")["kv"].mode is KvMode.EXACT
    assert parse("--kv", "off", EDGEKV_KV_VRAM="1GiB")["kv"].placement.kv_vram == 1 << 30


@pytest.mark.parametrize("value", ["0", "0.9", "-4", "nan", "inf", "much", "", None, "1e999"], ids=str)
def test_a_resolution_is_a_number_from_1(value):
    with pytest.raises(ConfigError, match=r"it must be a number from 1 to 1e\+09, such as 2000"):
        KvOptions(sample_budget=value)
    assert KvOptions(sample_budget=1).selection.sample_budget == 1.0 and isinstance(KvOptions(sample_budget="2e3").selection.sample_budget, float)


def test_what_is_kept_is_read_whole_or_as_a_sample():
    kept = parse("--kv", "evict", "--evict-to", "2048", "--policy", "ema")["kv"]
    assert kept.keep_tokens == 2048 and not kept.samples_kept and not kept.with_(mode="sparse", sample_budget=1000).with_(mode="evict").samples_kept
    sampled = parse("--kv", "evict", "--evict-to", "2048", "--sample-budget", "500")["kv"]
    assert sampled.samples_kept and sampled.selection.sample_budget == 500 and not sampled.with_(mode="sparse").samples_kept
    variables = parse("--kv", "evict", EDGEKV_SAMPLE_BUDGET="500", EDGEKV_EVICT_TO="64MiB")["kv"]
    assert variables.samples_kept and variables.eviction.evict_to.bytes == 64 << 20


def test_an_error_or_a_resolution():
    assert parse("--kv", "sparse", "--target-error", "2%")["kv"].selection.target_error == 0.02
    assert parse("--kv", "sparse", EDGEKV_TARGET_ERROR="2%")["kv"].selection.target_error == 0.02
    assert parse("--kv", "sparse", "--sample-budget", "300", EDGEKV_TARGET_ERROR="2%")["kv"] == KvOptions(mode="sparse", sample_budget=300)
    assert parse("--kv", "sparse", "--target-error", "3%", EDGEKV_SAMPLE_BUDGET="300")["kv"] == KvOptions(mode="sparse", target_error=0.03)
    for value in ("0", "51%", "much"):
        result = CliRunner().invoke(taken, ["--target-error", value])
        assert result.exit_code == 2 and "it must be a share above 0% and up to 50%" in " ".join(result.output.split())


@pytest.mark.parametrize("of_file", ["target_error", "sample_budget"])
def test_the_file_goes_behind_the_other_of_the_two(of_file):
    """A resolution in the file of options gives way to an error on the command line or in a variable, and the other way round."""
    values = {"target_error": ("2%", KvOptions(mode="sparse", target_error=0.02)), "sample_budget": ("300", KvOptions(mode="sparse", sample_budget=300))}
    other = "sample_budget" if of_file == "target_error" else "target_error"
    found: list[KvOptions] = []

    @click.command()
    @settings_of("plan")
    def command(**settings: Any) -> None:
        found.append(split_kv_options(settings)["kv"])

    file = {"default_map": {of_file: values[of_file][0]}}
    for arguments, environment in (([], {}), ([f"--{other.replace('_', '-')}", values[other][0]], {}), ([], {f"EDGEKV_{other.upper()}": values[other][0]})):
        result = CliRunner().invoke(command, ["--kv", "sparse", *arguments], env=environment, catch_exceptions=False, **file)
        assert result.exit_code == 0, result.output
    assert found == [values[of_file][1], values[other][1], values[other][1]]


@pytest.mark.parametrize("values", [{"kv_vram": 0}, {"kv_vram": -1}, {"kv_vram": 1.5}, {"attention_device": "gpu"}, {"attention_device": "CUDA"},
                                    {"evict_to": "soon"}, {"evict_to": "0"}], ids=str)
def test_values_that_are_not_allowed(values):
    with pytest.raises(ConfigError, match="must be a number of bytes|write tokens such as 4096|use one of: auto, cpu, cuda"):
        KvOptions(**values)


def test_a_gpu_in_vain(monkeypatch):
    """A GPU that was asked for is an error with its exit code; one that is merely there is a loud warning."""
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: (["Card, 1 MiB, driver 580.1"], ""))
    monkeypatch.setattr(devices, "devices", lambda kind: [])
    monkeypatch.setattr(devices, "has_cuda_build", lambda: False)
    with pytest.raises(CudaUnavailable, match="EDGEKV_CUDA=on; use --attention-device cpu to run without it"):
        parse("--attention-device", "cuda")
    assert "warning: THE GPU IS NOT USED (Card, 1 MiB, driver 580.1)" in invoked()[1].stderr
    assert invoked("--attention-device", "cpu")[1].output == ""


def test_the_emulated_device_is_for_tests_only():
    assert CliRunner().invoke(taken, ["--attention-device", "emulated"]).exit_code == 2
    assert KvOptions.from_env(attention_device="emulated").placement.attention_device == "emulated"


@pytest.mark.parametrize("isa, device, mode", [("avx512", "cpu", "sparse"), ("avx2", "cpu", "sparse"), ("portable", "cpu", "exact"),
                                               ("avx512", "emulated", "exact")])
def test_who_asks_for_none_gets_the_mode_that_won(monkeypatch, request, isa: str, device: str, mode: str):
    """The measured mode is the default where nobody asks for another."""
    if device == "emulated":
        monkeypatch.setenv("EDGEKV_EMULATOR", str(request.getfixturevalue("emulator")))
    monkeypatch.setattr(_native, "isa", lambda: isa)
    assert devices.measured_mode(devices.place(KvOptions(attention_device=device))) is KvMode(mode)
    assert parse("--kv", "exact")["kv"].mode is KvMode.EXACT
    assert parse(EDGEKV_KV="off")["kv"].mode is KvMode.OFF
    assert parse(EDGEKV_ATTENTION_DEVICE=device)["kv"].mode is KvMode(mode)
