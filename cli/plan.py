"""`edgekv plan`: whether a model fits, how fast it will be at which length, what EdgeKV gains, and which flags."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import SettingsCommand
from edgekv.cli.common.progress import measuring_bar
from edgekv.cli.common.shared_options import later_files, model_argument, model_path, option, settings_of, split_kv_options
from edgekv.cli.common.tables import NAME, Column, print_json, print_rows
from edgekv.cli.common.verdict import Mark, heading, prose, say
from edgekv.common.enums import KvMode
from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from edgekv.common.units import MIB, gibibytes, mebibytes, parameters, size, size_of, tokens

if TYPE_CHECKING:
    from edgekv.planning.plan import Plan

SPEED_COLUMNS = [
    Column("depth", "context", tokens, rank=NAME),
    *(Column(mode, title, lambda rate: f"{rate:,.1f}", rank=8) for mode, title in (("off", "llama.cpp"), ("exact", "exact"), ("sparse", "sparse"))),
    Column("times", "speedup", lambda times: f"{times:.1f}x", rank=8),
    Column("prompt_sparse", "prefill", lambda rate: f"{rate:,.0f}", rank=7),
    Column("prompt_off", "llama.cpp's", lambda rate: f"{rate:,.0f}"),
]


@click.command(cls=SettingsCommand, epilog=examples(
    "edgekv plan",
    "edgekv plan model.gguf --ctx 65536 --parallel 2",
    "edgekv plan model.gguf --json",
))
@model_argument
@settings_of("plan")
@option("--recalibrate", is_flag=True, help="Measure the rates of this machine again; they are kept after the first time.")
@option("-v", "--verbose", is_flag=True, envvar="EDGEKV_PLAN_VERBOSE", help="Also the memory by part, the limits of each mode, and reasons.")
@option("--json", "as_json", is_flag=True, envvar="EDGEKV_PLAN_JSON", help="Print everything as JSON.")
def plan(model: Path | None, parallel: int, cache_ram: int | None, recalibrate: bool, verbose: bool, as_json: bool, **settings: Any) -> int:
    """Say how much of the free memory MODEL needs, which context fits, how fast it will be, and with which flags.

    MODEL is a GGUF file, of which the header is enough; without one, the default model. Nothing is loaded. The rates of this machine
    are measured at the first use, in a few seconds, and kept, unless other programs were busy at the time. The exit code is
    4 if the plan does not fit.
    """
    from edgekv.measure.planned import Measuring, PlanQuestion, plan_here
    from edgekv.prefix_cache.settings import StoreSettings

    path, later = model_path(model), later_files(settings)
    chosen = split_kv_options(settings, path, parallel)
    store = 0 if chosen["kv"].mode is KvMode.EVICT else StoreSettings.ram_bytes if cache_ram is None else cache_ram
    asked = PlanQuestion(chosen["kv"], chosen["n_ctx"], parallel, store, chosen["n_threads"], chosen["weights_from_disk"], later)
    with measuring_bar() as show:
        found = plan_here(path, asked, Measuring(show, recalibrate))
    if as_json:
        print_json(to_builtins(found) | {"fits": found.problem is None, "total": {place: found.total(place) for place in found.free}})
    else:
        _print(found, model, verbose)
    return EXIT_OK if found.problem is None else EXIT_DOES_NOT_FIT


def _print(plan: Plan, given: Path | None, verbose: bool) -> None:
    from edgekv.common.machine import stamp

    machine = stamp()
    heading(Path(plan.model).stem, f"({plan.architecture}, {parameters(plan.n_params)} parameters, {plan.file_type}) on {machine['cpu']}, "
                                   f"{machine['cores']} cores; free: " + ", ".join(f"{size(n)} ({place})" for place, n in plan.free.items()))
    _print_verdict(plan, given)
    if plan.speeds:
        click.echo()
        print_rows(_speed_rows(plan), SPEED_COLUMNS, "table")
        prose("tok/s of one conversation, by estimate; prefill with EdgeKV", "dim")
    if verbose:
        click.echo()
        _print_more(plan)
    elif sys.stdout.isatty():
        prose("\nMemory by part, limits, reasons: edgekv plan -v    JSON: --json", "dim")


def _print_verdict(plan: Plan, given: Path | None) -> None:
    from edgekv.planning.plan import LONGEST

    of_slots = f" for each of {plan.n_slots} slots" if plan.n_slots > 1 else ""
    at = f"{plan.n_ctx:,} tokens{of_slots}"
    if plan.problem is not None:
        say(Mark.BAD, "No fit", plan.problem)
    else:
        longest = next((limit.fits_tokens for limit in plan.limits if limit.mode == plan.mode), None)  # None: mode evict has no longest
        say(Mark.GOOD, "Fits", "up to " + ", ".join(f"{size_of(plan.total(place), free)}" + f" ({place})" * (len(plan.free) > 1)
                                                  for place, free in plan.free.items() if plan.total(place)) + f" with {at}, mode {plan.mode}",
            *([] if longest is None else [f"longest that fits: {longest:,}" + "+" * (longest >= LONGEST)]))
    rate = {speed.mode: speed.decode for speed in plan.speeds if speed.depth == plan.n_ctx}
    ours, stock = rate.get(plan.recommended), rate.get("off")
    if plan.recommended != "off" and ours and stock:
        say(Mark.GOOD if plan.problem is None else Mark.MORE, "Speed",
            f"{ours:,.1f} tok/s at {plan.n_ctx:,} tokens in mode {plan.recommended}, {stock:,.1f} with llama.cpp",
            f"{ours / stock:.1f}x, estimate")
    else:
        say(Mark.MORE, "Mode", f"{'stock (--kv off)' if plan.recommended == 'off' else '--kv ' + plan.recommended}: {plan.why}")
    if plan.served_layers < plan.n_layer:
        say(Mark.MORE, "Layers", _layers(plan))
    if plan.problem is None:
        say(Mark.NEXT, "Run", shlex.join(["edgekv", "serve", *([str(given)] if given is not None else []), *plan.flags]))
    if plan.busy:
        say(Mark.DOUBT, "Busy", f"other programs kept {plan.busy:.1f} cores busy while rates were measured: the speeds are a guess, not kept, and measured "
                                "again by the next plan")
    for note in plan.notes:
        say(Mark.DOUBT, "Note", note)


def _layers(plan: Plan) -> str:
    """ "samples 3 of 18 layers, reads 15 sliding-window layers whole"."""
    whole = f", reads {plan.whole_layers} whole (their windows slide)" if plan.whole_layers else ""
    return f"EdgeKV samples {plan.served_layers} of {plan.n_layer} layers{whole}; `edgekv models show` has the reasons"


def _print_more(plan: Plan) -> None:
    from edgekv.planning.plan import LONGEST, USER_TOKENS

    _print_parts(plan)
    click.echo()
    print_rows([to_builtins(limit) for limit in plan.limits], [
        Column("mode", "mode", lambda mode: {"off": "llama.cpp"}.get(mode, mode), right=False, rank=NAME),
        Column("fits_tokens", "context that fits", lambda n: f"{n:,}" + ("+" if n >= LONGEST else "")),
        Column("readable_tokens", "5 tokens/s up to", lambda n: f"{n:,}"),
    ], "table")
    click.echo()
    if plan.token_bytes:
        say(Mark.MORE, "Grows", f"{size(plan.start_bytes)} at the start, then {plan.token_bytes:,} bytes a token as tokens come, "
                                f"{plan.kv_bytes_per_token:,} of them K and V; the table is of a full context")
    say(Mark.MORE, "Limit", plan.sentence)
    say(Mark.MORE, "Users", f"{plan.users:,} conversations of {USER_TOKENS:,} tokens fit beside the weights")
    say(Mark.MORE, "Layers", _layers(plan))
    say(Mark.MORE, "Attention", f"on {'the processor' if plan.place == 'host' else plan.place}")
    say(Mark.MORE, "Why", plan.why)


def _print_parts(plan: Plan) -> None:
    shown = mebibytes if max(plan.total(place) for place in plan.free) < 8192 * MIB else gibibytes
    unit = "MiB" if shown is mebibytes else "GiB"
    rows = [{"name": part.name, "place": part.place, "bytes": part.bytes, "how": part.how, "note": part.note} for part in plan.parts]
    rows += [{"name": "all", "place": place, "bytes": plan.total(place), "note": f"of {size(free)} free"} for place, free in plan.free.items()
             if plan.total(place)]
    print_rows(rows, [Column("name", "what", right=False, rank=NAME), Column("place", "where", right=False, rank=NAME), Column("bytes", unit, shown, rank=8),
                      Column("how", "", right=False), Column("note", "", right=False, rank=8, least=16)], "table")


def _speed_rows(plan: Plan) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for speed in plan.speeds:
        rows.setdefault(speed.depth, {"depth": speed.depth}).update({speed.mode: speed.decode, f"prompt_{speed.mode}": speed.prompt})
    for row in rows.values():
        row["times"] = row["sparse"] / row["off"] if row["off"] and row["sparse"] else None
    return list(rows.values())
