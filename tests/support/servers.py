"""Documents of servers and of the plan, as a report finds them in files."""


def serve_rows(n_clients: int) -> list[dict]:
    """As `edgekv bench serve -o json` has them."""
    speeds = {"off-flash": 40.0, "off-noflash": 50.0, "exact": 80.0, "sparse": 100.0}
    return [{"server": server, "part": part, "clients": n_clients, "n_prompt": 1900, "n_answer": 64, "seconds": 64 * n_clients / speed,
             "seconds_vs_stock": speed / 50, "tokens_per_second": speed * (1 + n_clients / 8), "speed_vs_stock": speed / 50, "ttft_p50_s": 2.5,
             "ttft_max_s": 4.0, "gap_p50_ms": 1e3 * n_clients / speed, "gap_p99_ms": 40.0, "gap_max_ms": 60.0, "turns": 2,
             "cpu": "AMD EPYC, Zen 4, AVX-512", "date": "2026-11-22", "cores": 2, "model": "tiny.gguf"}
            for part in ("read", "decode") for server, speed in speeds.items()]


def plan_document() -> dict:
    """As `edgekv plan --json` prints it; the rates are those of results.bench_rows, a tenth less."""
    times = {"off": 50.0, "exact": 20.0, "sparse": 12.5}
    speeds = [{"mode": mode, "depth": depth, "decode": 900 / (10 + (ms - 10) * depth / 8000), "prompt": 9000 / (10 + (ms - 10) * depth / 8000)}
              for depth in (4000, 8000, 16000) for mode, ms in times.items()]
    return {"model": "/elsewhere/tiny.gguf", "architecture": "llama", "file_type": "Q4_1", "n_params": 1_000_000, "n_ctx_train": 8192, "mode": "sparse",
            "n_ctx": 8192, "n_slots": 1, "place": "host", "free": {"host": 24 << 30},
            "parts": [{"name": "weights", "bytes": 92 << 20, "how": "known", "place": "host", "note": "mapped from the file"},
                      {"name": "compute", "bytes": 21 << 20, "how": "estimated", "place": "host", "note": ""}],
            "problem": None, "limits": [{"mode": mode, "fits_tokens": 900_000, "readable_tokens": 50_000} for mode in times], "users": 247,
            "speeds": speeds, "recommended": "sparse", "why": "at 8,192 tokens it decodes 4.0x as fast as stock by estimate",
            "sentence": "on a processor 900,000 tokens fit", "flags": ["--ctx", "8192", "--kv", "sparse"], "notes": [], "fits": True,
            "total": {"host": 113 << 20}}


