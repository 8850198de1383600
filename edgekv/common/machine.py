"""This machine in words. A figure needs the processor and the day that it was measured on."""

import datetime
import functools
import math
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MOST_THREADS = 512
"""Of ggml."""

_INTEL = {
    0x3C: "Haswell", 0x3F: "Haswell", 0x45: "Haswell", 0x46: "Haswell", 0x3D: "Broadwell", 0x47: "Broadwell", 0x4F: "Broadwell",
    0x56: "Broadwell", 0x4E: "Skylake", 0x5E: "Skylake", 0x8E: "Kaby Lake", 0x9E: "Kaby Lake", 0x6A: "Ice Lake", 0x6C: "Ice Lake",
    0x7E: "Ice Lake", 0x8C: "Tiger Lake", 0xA7: "Rocket Lake", 0x97: "Alder Lake", 0x9A: "Alder Lake", 0xB7: "Raptor Lake",
    0x8F: "Sapphire Rapids", 0xCF: "Emerald Rapids", 0xAD: "Granite Rapids", 0xAE: "Granite Rapids",
}
"""Microarchitectures by model number (family 6), Linux arch/x86/include/asm/intel-family.h. 0x55 is three of them, see _intel."""

_ARM = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2", "0xd84": "Neoverse V3",
        "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76"}
"""By part number, Linux arch/arm64/include/asm/cputype.h."""


def cpu_name() -> str:
    """The processor's own name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_family() -> str:
    """Maker and line, microarchitecture where it is known, widest vector or matrix unit: "Intel Xeon, Sapphire Rapids, AMX", "AMD EPYC,
    Zen 4, AVX-512". Machines of one family compute alike."""
    return family_of(_cpuinfo()) or cpu_name()


def stamp() -> dict[str, str | int]:
    """Part of every measurement: `cpu`, the `cores` that this process may use, and the `date` (ISO 8601)."""
    return {"cpu": cpu_family(), "cores": n_cores(), "date": datetime.date.today().isoformat()}


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """The default number of threads: one for each core that this process may use, but no more than its control groups give it time for. As in
    llama.cpp, a core's second thread and a hybrid processor's slow cores do not count."""
    cpus = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    fast = {cpu for cpu in cpus if cpu in _listed(FAST_CORES)}
    siblings = {_text(SIBLINGS.format(cpu)) or str(cpu) for cpu in fast or cpus}
    return max(1, math.ceil(min(len(siblings), _quota())))


FAST_CORES = "/sys/devices/cpu_core/cpus"
"""Only hybrid processors have this file."""
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
QUOTA = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")
"""Version 2 has both numbers in one file."""


def _quota() -> float:
    """The processor time of this container, in processors; infinite without a limit."""
    both = _text(QUOTA[0]).split() or [_text(QUOTA[1]), _text(QUOTA[2])]
    if len(both) == 2 and all(number.isdigit() and int(number) for number in both):
        return int(both[0]) / int(both[1])
    return math.inf


def _listed(path: str) -> set[int]:
    """The numbers of a file such as "0-3,8"; none if there is no file."""
    numbers: set[int] = set()
    for part in filter(None, _text(path).split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def family_of(facts: Mapping[str, str]) -> str:
    """`cpu_family` from the first processor of /proc/cpuinfo; empty if it cannot be told."""
    flags = set(facts.get("flags", "").split())
    if facts.get("vendor_id") == "GenuineIntel":
        parts = [_line("Intel", facts, "Xeon|Core|Atom|Pentium|Celeron"), _intel(facts, flags)]
    elif facts.get("vendor_id") == "AuthenticAMD":
        parts = [_line("AMD", facts, "EPYC|Ryzen|Threadripper|Opteron"), _amd(facts, flags)]
    elif "CPU part" in facts:
        parts = [facts.get("model name", "Arm"), _ARM.get(facts["CPU part"], "")]
        flags = set(facts.get("Features", "").split())
    else:
        return ""
    return ", ".join(part for part in (*parts, _unit(flags)) if part)


def _line(maker: str, facts: Mapping[str, str], lines: str) -> str:
    found = re.search(rf"\b({lines})\b", facts.get("model name", ""))
    return f"{maker} {found[1]}" if found else maker


def _intel(facts: Mapping[str, str], flags: set[str]) -> str:
    if facts.get("cpu family") != "6":
        return ""
    model = _number(facts, "model")
    if "amx_tile" in flags:  # a hypervisor may tell another model number
        newer = {0xCF, 0xAD, 0xAE}
        return _INTEL[model] if model in newer else "Granite Rapids" if "amx_fp16" in flags else "Sapphire Rapids"
    if model == 0x55:
        return "Cooper Lake" if "avx512_bf16" in flags else "Cascade Lake" if "avx512_vnni" in flags else "Skylake"
    return _INTEL.get(model, "")


def _amd(facts: Mapping[str, str], flags: set[str]) -> str:
    family, model = _number(facts, "cpu family"), _number(facts, "model")
    if family == 0x17:
        return "Zen 2" if model >= 0x30 else "Zen"
    if family == 0x19:
        return "Zen 4" if "avx512f" in flags else "Zen 3"
    return "Zen 5" if family == 0x1A else ""


def _number(facts: Mapping[str, str], key: str) -> int:
    text = facts.get(key, "")
    return int(text) if text.isdigit() else -1


def _unit(flags: set[str]) -> str:
    units = (("amx_tile", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sve", "SVE"), ("asimd", "NEON"))
    return next((name for flag, name in units if flag in flags), "")


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty if there is no such file."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.strip().split("\n\n")[0]
    return {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in first.splitlines()) if colon}
