"""`edgekv plan`: whether a model fits, how fast it will be at which length, what EdgeKV gains, and which flags."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.progress import measuring_bar
from edgekv.cli.common.shared_options import SettingsCommand, model_argument, model_path, option, settings_of, split_kv_options
from edgekv.cli.common.tables import Column, print_json, print_rows
from edgekv.common.enums import KvMode
from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_OK
from edgekv.common.units import MIB, gibibytes, mebibytes, size, tokens

if TYPE_CHECKING:
    from edgekv.planning.plan import Plan

SPEED_COLUMNS = [
    Column("depth", "context", tokens),
    *(Column(mode, f"{title} t/s", lambda rate: f"{rate:,.1f}") for mode, title in (("off", "stock"), ("exact", "exact"), ("sparse", "sparse"))),
    Column("times", "sparse is", lambda times: f"{times:.1f}x"),
    Column("prompt_off", "prompt: stock t/s", lambda rate: f"{rate:,.0f}"),
    Column("prompt_sparse", "prompt: EdgeKV t/s", lambda rate: f"{rate:,.0f}"),
]

BUSY = "measured busy"
"""The mark of lines that depend on the rates of a busy machine."""


@click.command(cls=SettingsCommand, epilog=examples(
    "edgekv plan",
    "edgekv plan model.gguf --ctx 65536 --parallel 2",
    "edgekv plan model.gguf --json",
))
@model_argument
@settings_of("plan")
@option("--measure", is_flag=True, help="Ask llama.cpp for the size of its work buffers, without loading the model; a formula otherwise.")
@option("--recalibrate", is_flag=True, help="Measure the rates of this machine again; they are kept after the first time.")
@option("--json", "as_json", is_flag=True, envvar="EDGEKV_PLAN_JSON", help="Print everything as JSON.")
def plan(model: Path | None, parallel: int, cache_ram: int | None, measure: bool, recalibrate: bool, as_json: bool, **settings: Any) -> int:
    """Say how much of the free memory MODEL needs, which context fits, how fast it will be, and with which flags.

    MODEL is a GGUF file, of which the header is enough; without one, the default model. Nothing is loaded. The rates of this machine
    are measured at the first use, in a few seconds, and kept, unless other programs were busy at the time. The exit code is
    4 if the plan does not fit.
    """
    from edgekv.measure.planned import Measuring, PlanQuestion, plan_here
    from edgekv.prefix_cache.settings import StoreSettings

    path = model_path(model)
    chosen = split_kv_options(settings, path, parallel)
    store = 0 if chosen["kv"].mode is KvMode.EVICT else StoreSettings.ram_bytes if cache_ram is None else cache_ram
    asked = PlanQuestion(chosen["kv"], chosen["n_ctx"], parallel, store, chosen["n_threads"], chosen["weights_from_disk"])
    with measuring_bar() as show:
        found = plan_here(path, asked, Measuring(show, measure, recalibrate))
    if as_json:
        print_json(asdict(found) | {"fits": found.problem is None, "total": {place: found.total(place) for place in found.free}})
    else:
        _print(found, model)
    return EXIT_OK if found.problem is None else EXIT_DOES_NOT_FIT


def _print(plan: Plan, given: Path | None) -> None:
    from edgekv.common.machine import stamp
    from edgekv.planning.plan import LONGEST, USER_TOKENS

    machine = stamp()
    _line("model", f"{Path(plan.model).name}: {plan.architecture}, {plan.n_params / 1e6:,.1f}M parameters, {plan.file_type}; "
                   f"{plan.kv_bytes_per_token:,} bytes of K and V a token")
    _line("machine", f"{machine['cpu']}, {machine['cores']} cores; free now: " + ", ".join(f"{size(n)} ({place})" for place, n in plan.free.items()))
    of_slots = f" for each of {plan.n_slots} slots" if plan.n_slots > 1 else ""
    _line("planned", f"{plan.n_ctx:,} tokens{of_slots}, mode {plan.mode}, attention on {'the processor' if plan.place == 'host' else plan.place}")
    click.echo()
    _print_parts(plan)
    if plan.token_bytes:
        _line("grows", f"{size(plan.start_bytes)} at the start, then {plan.token_bytes:,} bytes a token as tokens come; the table is of a full context")
    click.echo()
    mark = [Column("busy", "", right=False)] if plan.busy else []
    print_rows([asdict(limit) | {"busy": BUSY} for limit in plan.limits], [
        Column("mode", "mode", lambda mode: {"off": "stock"}.get(mode, mode), right=False),
        Column("fits_tokens", "context that fits", lambda n: f"{n:,}" + ("+" if n >= LONGEST else "")),
        Column("readable_tokens", "5 tokens/s up to", lambda n: f"{n:,}"),
        *mark,
    ], "table")
    click.echo()
    if plan.speeds:
        click.echo("tokens a second of one conversation, by estimate:")
        print_rows([row | {"busy": BUSY} for row in _speed_rows(plan)], SPEED_COLUMNS + mark, "table")
        click.echo()
    guess = f" ({BUSY})" if plan.busy else ""
    _line("limit", plan.sentence + guess)
    _line("users", f"{plan.users:,} conversations of {USER_TOKENS:,} tokens fit beside the weights")
    _line("layers", f"EdgeKV attends {plan.served_layers} of {plan.n_layer} (edgekv models show MODEL says why not the others)")
    _line("take", f"{'stock (--kv off)' if plan.recommended == 'off' else '--kv ' + plan.recommended}: {plan.why}{guess}")
    if plan.busy:
        _line("busy", f"other programs kept {plan.busy:.1f} cores busy while rates were measured: they are a guess, not kept, and measured again by "
                      "the next plan")
    for note in plan.notes:
        _line("note", note)
    if plan.problem is not None:
        _line("DOES NOT FIT", plan.problem)
    _line("run", f"edgekv serve {shlex.join([str(given)] if given is not None else [])} {' '.join(plan.flags)}".replace("  ", " "))


def _print_parts(plan: Plan) -> None:
    shown = mebibytes if max(plan.total(place) for place in plan.free) < 8192 * MIB else gibibytes
    unit = "MiB" if shown is mebibytes else "GiB"
    rows = [{"name": part.name, "place": part.place, "bytes": part.bytes, "how": part.how, "note": part.note} for part in plan.parts]
    rows += [{"name": "all", "place": place, "bytes": plan.total(place), "note": f"of {size(free)} free"} for place, free in plan.free.items()
             if plan.total(place)]
    print_rows(rows, [Column("name", "what", right=False), Column("place", "where", right=False), Column("bytes", unit, shown),
                      Column("how", "", right=False), Column("note", "", right=False)], "table")


def _speed_rows(plan: Plan) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for speed in plan.speeds:
        rows.setdefault(speed.depth, {"depth": speed.depth}).update({speed.mode: speed.decode, f"prompt_{speed.mode}": speed.prompt})
    for row in rows.values():
        row["times"] = row["sparse"] / row["off"] if row["off"] and row["sparse"] else None
    return list(rows.values())


def _line(label: str, text: str) -> None:
    click.echo(f"{label:<14}{text}")
