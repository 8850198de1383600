"""Rows and documents of results, as the benchmarks and the plan write them."""


def ladder_rows(text: str = "prose", model: str = "tiny.gguf") -> list[dict]:
    return [
        {"kind": "ladder", "model": model, "text": text, "depth": 300, "n_steps": 40, "version": "1", "rung": rung, "base": None,
         "published": published, "budget": budget, "policy": rung, "observe": "honest", "hit_rate": 0.6 + budget + i / 20,
         "hit_rate_mass": 0.7, "worst_mass": 0.6, "fetched": 0.5, "gain": None, "gain_mass": None}
        for budget in (0.1, 0.3) for i, (rung, published) in enumerate((("lru", 0.7), ("+ anchors", 0.78), ("+ one pool", None)))
    ]


def quality_rows(mode: str = "sparse") -> list[dict]:
    task = {"kind": "task", "model": "tiny.gguf", "mode": mode, "length": None, "asked": 10, "full_found": 8, "kept": 6,
            "retention": 0.75, "retention_low": 0.41, "retention_high": 0.93, "says_nothing": False}
    silent = {**task, "task": "uuid", "full_found": 0, "kept": 0, "retention": None, "retention_low": None,
              "retention_high": None, "says_nothing": True}
    text = {"kind": "text", "model": "tiny.gguf", "text": "prose", "mode": mode, "kld_exact": 0.006, "same_top_exact": 0.96,
            "attended_fraction": 0.066}
    full = [{**text, "mode": "exact", "kld_exact": None, "same_top_exact": None}, {**task, "task": "passkey", "mode": "exact"}]
    return [{**task, "task": "passkey"}, {**task, "task": "passkey", "length": 1024, "kept": 1}, silent, *full,
            {**text, "mode": "off", "kld_exact": 0.004, "same_top_exact": 0.98}, text]


ENVIRONMENT = {"date": "2026-11-22", "cpu": "AMD EPYC 9B14", "family": "AMD EPYC, Zen 4, AVX-512", "isa": "avx512", "cores": 2,
               "ram_bytes": 24 << 30, "memory_gb_s": 18.3, "gpu": None, "driver": None, "link": None, "python": "3.11.2", "edgekv": "1",
               "llama_cpp": "0c1e57098", "commit": "abc1234"}
MODES = {"off-flash": 80.0, "off-noflash": 50.0, "exact": 20.0, "sparse": 12.5}
"""Milliseconds of a token at 8,000 tokens."""


def bench_rows(modes: tuple[str, ...] = tuple(MODES), depths: tuple[int, ...] = (0, 4000, 8000), **changes: object) -> list[dict]:
    """As `edgekv bench -o json` has them: reading and writing at some depths. With an empty cache a token takes 10 ms."""
    rows = []
    for depth in depths:
        for test, n_prompt, n_gen in (("pp512", 512, 0), ("tg64", 0, 64)):
            for mode in modes:
                ms = 10 + (MODES[mode] - 10) * depth / 8000
                speed = 1e3 / ms * (10 if n_prompt else 1)
                sparse = mode == "sparse" and n_gen > 0 and depth > 0
                rows.append({
                    "build_commit": "0c1e57098", "build_number": 1, "cpu_info": "AMD EPYC 9B14", "gpu_info": "", "backends": "CPU",
                    "model_filename": "models/tiny.gguf", "model_type": "llama ?B", "n_batch": 2048, "n_ubatch": 512, "n_threads": 2, "type_k": "f16",
                    "type_v": "f16", "flash_attn": 0 if mode == "off-noflash" else 1, "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth,
                    "avg_ts": speed, "stddev_ts": 0.01 * speed, "samples_ts": [0.99 * speed, speed, 1.01 * speed], "kind": "bench",
                    "text": "prose", "test": test + (f" @ d{depth}" if depth else ""), "kv_mode": mode, "best_stock": mode == "off-noflash",
                    "kv_budget_mib": 36.0 if mode == "sparse" else None, "n_ctx": depth + 600, "vram_peak_mib": None,
                    "ram_peak_mib": 250 + depth / 40 * (1.2 if mode == "sparse" else 1), "ttft_ms": 512e3 / speed if n_prompt else None,
                    "tg_ts_p50": speed if n_gen else None, "tg_ts_p5": 0.9 * speed if n_gen else None, "hit_rate": 0.6 if sparse else None,
                    "coverage": 0.98 if sparse else None, "bytes_moved": 4096 if sparse else None, "stall_ms": 0.0 if sparse else None,
                    "attended_fraction": 474 / depth if sparse else None, "hit_rate_mass": 0.8 if sparse else None, "error": 0.01 if sparse else None,
                    "nll": 2.5 if n_gen else None, "kld": 0.004 if sparse else None, "kld_exact": 0.006 if sparse else None,
                    "limit_ratio": ms / 10, "limit_ms": 10.0 if n_gen else None, "ratio_vs_stock": 1.0,
                    "attention_fraction": 1 - 10 / ms if n_prompt and depth else None, "pair_ns": 7.8 if n_prompt and depth else None,
                    "rows_per_head": 474 if sparse else None, "fill": "text" if depth else None, "peer": None, "note": None,
                    "environment": ENVIRONMENT, **changes})
    return rows


def llama_bench_rows(flash: int | bool = -1) -> list[dict]:
    """As llama-bench itself writes them."""
    rows = bench_rows(("off-noflash",))
    ours = list(rows[0])[list(rows[0]).index("kind"):]
    return [{**{key: value for key, value in row.items() if key not in ours}, "flash_attn": flash} for row in rows]


def serve_rows(n_clients: int) -> list[dict]:
    """As `edgekv bench serve -o json` has them."""
    speeds = {"off-flash": 40.0, "off-noflash": 50.0, "exact": 80.0, "sparse": 100.0}
    return [{"server": server, "part": part, "clients": n_clients, "n_prompt": 1900, "n_answer": 64, "seconds": 64 * n_clients / speed,
             "seconds_vs_stock": speed / 50, "tokens_per_second": speed * (1 + n_clients / 8), "speed_vs_stock": speed / 50, "ttft_p50_s": 2.5,
             "ttft_max_s": 4.0, "gap_p50_ms": 1e3 * n_clients / speed, "gap_p99_ms": 40.0, "gap_max_ms": 60.0, "turns": 2,
             "cpu": "AMD EPYC, Zen 4, AVX-512", "date": "2026-11-22", "cores": 2, "model": "tiny.gguf"}
            for part in ("read", "decode") for server, speed in speeds.items()]


def plan_document() -> dict:
    """As `edgekv plan --json` prints it; the rates are those of bench_rows, a tenth less."""
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
