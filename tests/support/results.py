"""Rows of results as the benchmarks write them."""

from __future__ import annotations


def ladder_rows(text: str = "prose", live: bool = True, model: str = "tiny.gguf") -> list[dict]:
    return [
        {"kind": "ladder", "model": model, "text": text, "depth": 300, "n_steps": 40, "version": "1", "rung": rung, "base": None,
         "published": published, "budget": budget, "policy": rung, "observe": "honest", "hit_rate": 0.6 + budget + i / 20,
         "hit_rate_mass": 0.7, "worst_mass": 0.6, "fetched": 0.5, "gain": None, "gain_mass": None,
         "live_attended": budget + 0.01 if live else None, "kld": 0.1 / (i + 1) * (1 - budget) if live else None,
         "same_top": 0.8 + i / 20 if live else None,
         "ms_ratio": 0.5 if live else None, "overhead": 0.01 if live else None}
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


def time_rows(cpu: str = "AMD EPYC, Zen 4, AVX-512", date: str = "2026-11-21", v: str = "f16") -> list[dict]:
    """As `edgekv bench kv -o json` has them: stock's kernels, of which one is not to be had for q8_0."""
    milliseconds = {"off": 50.0, "off-flash": 80.0, "off-noflash": 50.0, "exact": 20.0, "sparse": 12.5}
    if v == "q8_0":
        milliseconds |= {"off": 80.0, "off-noflash": None}
    best = "off-flash" if v == "q8_0" else "off-noflash"
    return [{"kind": "kv", "mode": mode, "decode_ms_p50": ms, "stock": ms and best, "ratio_vs_stock": ms and milliseconds["off"] / ms,
             "limit_ms_p50": ms and 10.0, "ratio_vs_limit": ms and ms / 10, "kld_exact": None if mode == "exact" else 0.006,
             "text": "prose", "depth": 7680, "threads": 1, "type_k": v, "type_v": v, "model": "tiny.gguf", "version": "1",
             "isa": "avx512", "cpu": cpu, "date": date, "n_steps": 64, "note": None if ms else "llama.cpp needs flash attention"}
            for mode, ms in milliseconds.items()]


def rows_by_depth() -> list[dict]:
    """The time rows at two depths: at the smaller one everything takes half as long."""
    deep = time_rows()
    return [*deep, *({**row, "depth": 512, "decode_ms_p50": row["decode_ms_p50"] / 2} for row in deep)]


def prompt_rows() -> list[dict]:
    """As `edgekv bench kv --prefill -o json` has them."""
    return [{"kind": "prompt" if n == 7680 else "prefill", "mode": mode, "ms_p50": 1e3 * n / tps, "tokens_per_second": tps,
             "stock": "off-flash", "ratio_vs_stock": tps / 56, "attention_fraction": 0.9 if depth else None, "pair_ns": 7.8 if depth else None, "n_tokens": n,
             "depth": depth, "text": "prose", "threads": 1, "type_k": "f16", "type_v": "f16", "model": "tiny.gguf", "version": "1",
             "isa": "avx512", "cpu": "AMD EPYC, Zen 4, AVX-512", "date": "2026-11-21", "note": None}
            for n, depth in ((512, 0), (512, 7680), (7680, 0)) for mode, tps in (("off", 56), ("exact", 280))]


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
                    "test": test + (f" @ d{depth}" if depth else ""), "kv_mode": mode, "best_stock": mode == "off-noflash",
                    "kv_budget_mib": 36.0 if mode == "sparse" else None, "n_ctx": depth + 600, "vram_peak_mib": None,
                    "ram_peak_mib": 250 + depth / 40 * (1.2 if mode == "sparse" else 1), "ttft_ms": 512e3 / speed if n_prompt else None,
                    "tg_ts_p50": speed if n_gen else None, "tg_ts_p5": 0.9 * speed if n_gen else None, "hit_rate": 0.6 if sparse else None,
                    "coverage": 0.98 if sparse else None, "bytes_moved": 4096 if sparse else None, "stall_ms": 0.0 if sparse else None,
                    "nll": 2.5 if n_gen else None, "kld": 0.004 if sparse else None, "limit_ratio": ms / 10, "ratio_vs_stock": 1.0,
                    "rows_per_head": 474 if sparse else None, "fill": "text" if depth else None, "peer": None, "note": None,
                    "environment": ENVIRONMENT, **changes})
    return rows


def llama_bench_rows(flash: int | bool = -1) -> list[dict]:
    """As llama-bench itself writes them."""
    rows = bench_rows(("off-noflash",))
    ours = list(rows[0])[list(rows[0]).index("kind"):]
    return [{**{key: value for key, value in row.items() if key not in ours}, "flash_attn": flash} for row in rows]
