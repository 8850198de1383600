"""The tests of each room, those that cost least first: paths in tests/, or one test."""

KERNELS, DEVICE = "native/test_kernels.py", "native/test_device.py"

ROOMS: dict[str, tuple[str, ...]] = {
    "config": ("config", "cli/test_options.py"), "prefetch": ("prefetch",), "policies": ("policies",),
    **{f"hierarchy: {name}": (f"hierarchy/test_{name}.py", "hierarchy") for name in ("table", "budgets", "eviction", "migrator")},
    **{f"arrays: {name}": (f"arrays/test_{name}.py", "arrays") for name in ("ops", "nearness")},
    **{f"memory: {name}": (f"memory/test_{name}.py", "memory") for name in ("context", "roofline", "type_choice")}, "models": ("models",),
    **{f"store: {name}": (f"store/test_{name}.py", "store") for name in ("ram", "pins", "folder", "read_with", "remote", "coming", "snapshots")},
    "rates": ("lab/test_rates.py", "memory/test_calibration.py", "memory/test_roofline.py"),
    "lab": ("lab/test_intervals.py", "lab/test_bench.py", "lab/test_quality.py"), "lab sim": ("lab/test_sim.py", "lab/test_golden.py"),
    "cli": ("cli/test_tables.py", "cli/test_options.py", "lab/test_bench_command.py"), "chat pins": ("cli/test_pins.py", "cli/test_conversation.py"),
    "observers": ("live/test_observation.py",), "tokens": ("live/test_tokens.py", "live/test_snapshots.py", "serving/test_saving.py"),
    "kept prompts": ("serving/test_cache_requests.py",), "media": ("serving/test_media_hosts.py",), "sites": ("serving/test_sites.py",),
    "fetching": ("serving/test_fetching.py", "serving/test_expected.py"), "readings": ("serving/test_saving.py", "serving/test_prefixes.py"),
    "figures": ("serving/test_figures.py", "serving/test_page.py"),
    "attend": ("live/test_exact.py", f"{KERNELS}::test_attention", "live/test_observation.py"),
    "prompt": ("live/test_observation.py", "live/test_prompts.py", f"{KERNELS}::test_program[prompt]"),
    "sketch": (f"{KERNELS}::test_program[sketch]", "live/test_sparse.py"),
    "select": (f"{KERNELS}::test_program[sample]", "live/test_sparse.py", "live/test_sampling.py"),
    "products": ("live/test_products.py", f"{KERNELS}::test_program[products]"),
    "pages": (f"{KERNELS}::test_program[sync]", f"{KERNELS}::test_program[row_cache]", "live/test_cells.py", "live/test_sparse_changes.py", "live/test_pins.py",
              "live/test_eviction.py", "live/test_rows_on_disk.py"),
    "plane": (f"{KERNELS}::test_program[page_choice]", "live/test_plane.py"), "disk": ("live/test_rows_on_disk.py", "live/test_home_on_disk.py"),
    "state": ("live/test_tokens.py", "live/test_observation.py", "live/test_runtime.py", "serving/test_prefix_loading.py"),
    "context": ("live/test_settings.py", "live/test_sparse.py", "live/test_runtime.py"),
    "gaps": ("live/test_closed_gaps.py", "live/test_evicting_sequences.py"),
    "seam": ("live/test_snapshots.py", "live/test_held_tokens.py", "live/test_tokens.py", "live/test_sparse_prompts.py"),
    "one cache": ("live/test_places.py", "live/test_shared_cells.py", "serving/test_one_cache.py"),
    "api": ("live/test_settings.py", "live/test_runtime.py", "live/test_prompt_policies.py"),
    "server": ("serving/test_waits.py", "serving/test_limits.py"), "keys": ("serving/test_server.py",), "pace": ("serving/test_limits.py",),
    "fields": ("serving/test_biases.py", "serving/test_infill.py", "serving/test_client_texts.py", "serving/test_conforms_chat.py",
               "serving/test_answers_arrive.py"),
    "slot files": ("serving/test_slot_files.py", "serving/test_slot_actions.py"),
    **{f"cuda {name}": (f"{DEVICE}::test_program[test_{file}_device]",)
       for name, file in {"choose": "choose", "sight": "sight", "hot rows": "hot_rows", "attend": "attend"}.items()},
}
