"""Which kernel reads prompts: the fastest one, measured once for a machine and kept."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv import _native
from edgekv._native import prompt_kernel

_native.prepare()

from edgekv._native import core, instructions  # noqa: E402 (the libraries must be in place first)

INTEL = ["portable", "avx2", "avx512", "avx512bf16"]
"""A processor on which plain AVX-512 is a third faster than AVX512_BF16."""


class Clock:
    """Seconds of each kernel; counts how often it is asked."""

    def __init__(self, **seconds: float):
        self.seconds, self.n_asked = seconds, 0

    def __call__(self, name: str) -> float:
        self.n_asked += 1
        return self.seconds[name] * (1 + self.n_asked % 3)  # others use the processor too


def choose(default: str, available: list[str], clock: Clock, path: Path) -> str:
    return prompt_kernel.choose(default, available, clock, path)


def test_the_fastest_is_measured_once_and_kept(tmp_path):
    path, clock = tmp_path / "cache" / "kernel.json", Clock(avx512=0.75, avx512bf16=1.0)
    assert choose("avx512bf16", INTEL, clock, path) == "avx512" and clock.n_asked > 0
    other = Clock(avx512=1.0, avx512bf16=0.1)
    assert choose("avx512bf16", INTEL, other, path) == "avx512" and other.n_asked == 0, "once made, the choice stays"
    assert choose("avx512", [*INTEL, "amx"], Clock(avx512=1.0, avx512bf16=0.8, amx=0.3), path) == "amx", "another processor"
    assert choose("avx512bf16", INTEL, other, path) == "avx512"


def test_what_may_be_noise_changes_nothing(tmp_path):
    assert choose("avx512bf16", INTEL, Clock(avx512=0.95, avx512bf16=1.0), tmp_path / "kernel.json") == "avx512bf16"


@pytest.mark.parametrize("available", [["portable"], ["portable", "avx2"], ["portable", "avx2", "avx512"]])
def test_where_there_is_no_choice_nothing_is_measured(tmp_path, available):
    clock = Clock()
    assert choose(available[-1], available, clock, tmp_path / "kernel.json") == available[-1]
    assert clock.n_asked == 0 and not list(tmp_path.iterdir())


def test_a_choice_that_cannot_be_kept_is_the_default(tmp_path):
    """Else it could be another one each time, and with it the bits of every answer."""
    (tmp_path / "file").write_text("")
    clock = Clock(avx512=0.5, avx512bf16=1.0)
    assert choose("avx512bf16", INTEL, clock, tmp_path / "file" / "kernel.json") == "avx512bf16"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', '["avx512"]'])
def test_a_file_that_says_nothing_is_written_anew(tmp_path, text):
    path = tmp_path / "kernel.json"
    path.write_text(text)
    assert choose("avx512bf16", INTEL, Clock(avx512=0.5, avx512bf16=1.0), path) == "avx512"
    assert "avx512" in json.loads(path.read_text()).values()


def test_a_kept_choice_that_the_processor_has_not_is_measured_again(tmp_path):
    path = tmp_path / "kernel.json"
    choose("avx512bf16", INTEL, Clock(avx512=0.5, avx512bf16=1.0), path)
    path.write_text(path.read_text().replace('"avx512"', '"avx1024"'))
    assert choose("avx512bf16", INTEL, Clock(avx512=1.0, avx512bf16=1.0), path) == "avx512bf16"


def test_every_kernel_here_can_be_timed():
    for name in core.isa_available():
        assert 0 < instructions.time_prompts(name) < 10


def test_a_variable_chooses_another(tmp_path):
    script = "from edgekv import _native; print(_native.isa())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for name in core.isa_available():
        done = subprocess.run([sys.executable, "-c", script], env={**environment, "EDGEKV_ISA": name}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == name
    assert not list(tmp_path.rglob("*.json")), "nothing was measured"
    done = [subprocess.run([sys.executable, "-c", script], env={**environment, "EDGEKV_ISA": ""}, capture_output=True, text=True, check=True).stdout
            for _ in range(2)]
    assert done[0] == done[1] and done[0].strip() in core.isa_available()
