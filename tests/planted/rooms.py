"""The tests of each room, those that cost least first: paths in tests/, or one test."""

import re
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
KERNELS, DEVICE = "native/test_kernels.py", "native/test_device.py"

ROOMS: dict[str, tuple[str, ...]] = {
    "config": ("config", "cli/test_options.py"), "prefetch": ("tiering/test_prefetch.py",), "policies": ("policies",),
    **{f"hierarchy: {name}": (f"tiering/test_{name}.py", "tiering") for name in ("table", "budgets", "eviction", "migrator")},
    "arrays: ops": ("arrays", "policies/test_policies.py"),
    "arrays: nearness": ("arrays/test_nearness.py", "arrays"),
    **{f"memory: {name}": (f"planning/test_{name}.py", "planning") for name in ("context", "roofline", "type_choice")}, "models": ("models",),
    **{f"store: {name}": ("prefix_cache/test_state_machine.py", "prefix_cache/test_faults_machine.py", f"prefix_cache/test_{name}.py", "prefix_cache")
       for name in ("ram", "folder", "identity", "remote", "snapshots")},
    "store: coming": ("prefix_cache/test_faults_machine.py", "prefix_cache/test_bound_of_ram.py", "prefix_cache"),
    "rates": ("lab/test_rates.py", "planning/test_calibration.py", "planning/test_roofline.py"),
    "lab": ("lab/test_intervals.py", "bench/test_bench.py", "lab/test_quality.py"), "lab tasks": ("lab/test_tasks.py",),
    "report": ("lab/test_report.py",), "bench": ("bench/test_fields.py", "bench/test_bench.py"),
    "traces": ("lab/test_trace.py", "lab/test_sim.py"), "lab sim": ("lab/test_sim.py",),
    "cli": ("cli/test_tables.py", "cli/test_options.py", "bench/test_bench_command.py"), "chat pins": ("cli/test_pins.py", "cli/test_conversation.py"),
    "observers": ("runtime/test_observation.py",),
    "tokens": ("runtime/test_tokens.py", "runtime/test_identity.py", "runtime/test_snapshots.py", "server/test_saving.py", "server/test_parking.py"),
    "kept prompts": ("server/test_cache_requests.py",), "media": ("server/test_media_hosts.py",), "sites": ("server/test_sites.py",),
    "fetching": ("server/test_fetching.py",), "readings": ("server/test_saving.py", "server/test_prefixes.py"),
    "figures": ("server/test_figures.py", "server/test_page.py"),
    "attend": ("runtime/test_exact.py", f"{KERNELS}::test_program[attend]", "runtime/test_observation.py"),
    "prompt": ("runtime/test_observation.py", "runtime/test_prompts.py", f"{KERNELS}::test_program[prompt]"),
    "sketch": (f"{KERNELS}::test_program[sketch]", "runtime/test_sparse.py"),
    "select": (f"{KERNELS}::test_program[sample]", "runtime/test_sparse.py"),
    "products": ("runtime/test_products.py", f"{KERNELS}::test_program[products]"),
    "pages": (f"{KERNELS}::test_program[sync]", f"{KERNELS}::test_program[row_cache]", "runtime/test_cells.py", "runtime/test_sparse.py",
              "runtime/test_pins.py", "runtime/test_eviction.py", "runtime/test_rows_on_disk.py"),
    "disk": ("runtime/test_rows_on_disk.py",),
    "state": ("runtime/test_tokens.py", "runtime/test_observation.py", "runtime/test_runtime.py", "server/test_prefix_loading.py"),
    "context": ("runtime/test_settings.py", "runtime/test_sparse.py", "runtime/test_runtime.py"),
    "gaps": ("runtime/test_closed_gaps.py", "runtime/test_evicting_sequences.py"),
    "evict": ("runtime/test_eviction.py", "runtime/test_evicting_sequences.py"),
    "home": ("runtime/test_growing.py", "runtime/test_closed_gaps.py"),
    "glue": ("runtime/test_snapshots.py", "runtime/test_held_tokens.py", "runtime/test_parked_rows.py", "runtime/test_other_kernels.py",
             "runtime/test_architectures.py::test_keys_of_an_index_stay_with_the_rows", "runtime/test_tokens.py", "runtime/test_sparse_prompts.py"),
    "one cache": ("runtime/test_places.py", "server/test_one_cache.py"),
    "api": ("runtime/test_no_memory.py", "runtime/test_settings.py", "runtime/test_runtime.py", "runtime/test_observation.py"),
    "server": ("server/test_waits.py", "server/test_limits.py"), "keys": ("server/test_conforms_chat.py",), "pace": ("server/test_limits.py",),
    "fields": ("server/test_biases.py", "server/test_infill.py", "server/test_client_texts.py", "server/test_whole_answers.py",
               "server/test_answers_arrive.py"),
    "slot files": ("server/test_slot_files.py", "server/test_slot_actions.py"),
    **{f"cuda {name}": (f"{DEVICE}::test_program[test_{name.replace(' ', '_')}_device]",)
       for name in ("sight", "sample", "hot rows", "attend", "store", "sketch", "move")},
    "device plane": ("runtime/test_plane.py", "runtime/test_rows_on_device.py", "runtime/test_exact_pieces.py"),
}


def gone(tests: Iterable[str]) -> list[str]:
    """Those of these tests, or files and folders of tests, that there are not: by path in tests/ and name. What stands in brackets only a run knows."""
    def is_there(test: str) -> bool:
        path, _, name = test.partition("::")
        file = TESTS / path
        found = re.escape(re.split(r"\[|::", name)[0])  # a function, or a state machine's class
        return re.search(rf"^(def {found}\(|{found} = )", file.read_text(), re.M) is not None if name and file.is_file() else file.exists()

    return [test for test in tests if not is_there(test)]
