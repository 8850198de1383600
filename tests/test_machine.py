"""edgekv.common.machine names the processor in the words that stand beside figures."""

import datetime
import re

import pytest

from edgekv.common import machine

AMX = "fpu avx avx2 avx512f avx512_fp16 amx_bf16 amx_tile amx_int8"


def facts(vendor: str, name: str, family: int, model: int, flags: str) -> dict[str, str]:
    return {"vendor_id": vendor, "model name": name, "cpu family": str(family), "model": str(model), "flags": flags}


@pytest.mark.parametrize(("found", "family"), [
    (facts("GenuineIntel", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 6, 143, AMX), "Intel Xeon, Sapphire Rapids, AMX"),
    (facts("GenuineIntel", "Intel(R) Xeon(R) Processor", 6, 167, AMX), "Intel Xeon, Sapphire Rapids, AMX"),  # a hypervisor's model
    (facts("GenuineIntel", "Intel(R) Xeon(R) 6985P-C", 6, 173, AMX + " amx_fp16"), "Intel Xeon, Granite Rapids, AMX"),
    (facts("GenuineIntel", "Intel(R) Xeon(R) Gold 6230", 6, 85, "avx avx2 avx512f avx512_vnni"), "Intel Xeon, Cascade Lake, AVX-512"),
    (facts("GenuineIntel", "Intel(R) Core(TM) i7-1260P", 6, 154, "avx avx2"), "Intel Core, Alder Lake, AVX2"),
    (facts("GenuineIntel", "Intel(R) Pentium(R) 4 CPU", 15, 3, "sse2"), "Intel Pentium"),
    (facts("AuthenticAMD", "AMD EPYC 9B14", 25, 17, "avx avx2 avx512f"), "AMD EPYC, Zen 4, AVX-512"),
    (facts("AuthenticAMD", "AMD EPYC 7B13", 25, 1, "avx avx2"), "AMD EPYC, Zen 3, AVX2"),
    (facts("AuthenticAMD", "AMD Ryzen 9 9950X", 26, 68, "avx avx2 avx512f"), "AMD Ryzen, Zen 5, AVX-512"),
    (facts("AuthenticAMD", "AMD EPYC 7B12", 23, 49, "avx avx2"), "AMD EPYC, Zen 2, AVX2"),
    ({"CPU implementer": "0x41", "CPU part": "0xd4f", "Features": "fp asimd sve"}, "Arm, Neoverse V2, SVE"),
    ({"processor": "0"}, "")])
def test_families(found, family):
    assert machine.family_of(found) == family


def test_first_processor_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
                                      "model name\t: AMD EPYC 9B14: a \nflags\t\t: avx512f\npower management:\n\n"
                                      "processor\t: 1\nmodel name\t: other\n\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    machine._cpuinfo.cache_clear()
    try:
        assert machine.cpu_name() == "AMD EPYC 9B14: a" and machine.cpu_family() == "AMD EPYC, Zen 4, AVX-512"
        monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
        machine._cpuinfo.cache_clear()
        assert machine.cpu_name() == machine.cpu_family() != ""
    finally:
        machine._cpuinfo.cache_clear()


def test_stamp():
    stamp = machine.stamp()
    assert stamp["cpu"] == machine.cpu_family() and re.fullmatch(r"\d{4}-\d\d-\d\d", stamp["date"]) and stamp["cores"] >= 1
    assert abs(datetime.date.fromisoformat(stamp["date"]) - datetime.date.today()) <= datetime.timedelta(days=1)


# ---- threads --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "n"), [
    ({}, 8), ({f"s{cpu}": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(8)}, 4), ({"fast": "0-2,7"}, 4), ({"max": "max 100000"}, 8),
    ({"max": "150000 100000"}, 2), ({"quota": "-1", "period": "100000"}, 8), ({"quota": "300000", "period": "100000"}, 3), ({"max": "1000 100000"}, 1),
], ids=["plain", "two threads a core", "hybrid", "no limit", "1.5 processors", "v1, no limit", "v1", "a hundredth"])
def test_default_threads(tmp_path, monkeypatch, files, n):
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "FAST_CORES", str(tmp_path / "fast"))
    monkeypatch.setattr(machine, "SIBLINGS", str(tmp_path / "s{}"))
    monkeypatch.setattr(machine, "QUOTA", tuple(str(tmp_path / name) for name in ("max", "quota", "period")))
    assert machine.default_threads() == n
