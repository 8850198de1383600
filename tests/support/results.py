"""Rows of results as the benchmarks write them."""


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
