"""The waits of clients in /metrics, under our names and under vLLM's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.clients import send, until
from support.local_server import ask, complete, exposed, options, settled

from edgekv._native import http_server as native
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.server import metrics
from edgekv.server.server import Server
from edgekv.server.server_options import ServerLimits
from edgekv.server.shown import Served, Shown

TWINS = {"vllm:num_requests_running": "edgekv_requests_running", "vllm:num_requests_waiting": "edgekv_requests_waiting",
         "vllm:request_queue_time_seconds": "edgekv_queue_time_seconds", "vllm:time_to_first_token_seconds": "edgekv_time_to_first_token_seconds",
         "vllm:inter_token_latency_seconds": "edgekv_inter_token_latency_seconds",
         "vllm:time_per_output_token_seconds": "edgekv_inter_token_latency_seconds"}


# ---- the store -----------------------------------------------------------------------------------------------------------------


def test_what_happens_in_the_store_is_counted():
    names = ("ram_bytes", "ram_limit_bytes", "disk_bytes", "disk_limit_bytes", "n_blocks", "n_hits", "n_misses", "n_tokens_loaded", "n_waiting_writes",
             "n_dropped", "ram_evicted", "disk_evicted", "disk_refused", "remote_refused", "disk_outages", "remote_outages")
    figures = {name: n for n, name in enumerate(names, 1)}
    text = metrics.text(Shown(Served("m", 1, 1, 1), store=figures))
    found = {(sample.name, sample.labels.get("place") or sample.labels.get("tier")): sample.value
             for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {at: found[at] for at in found if at[0].startswith(("edgekv_store", "edgekv_tier_errors"))} == {
        ("edgekv_store_blocks", None): 5, ("edgekv_store_tokens_total", None): 8,
        ("edgekv_store_waiting_writes", None): 9, ("edgekv_store_dropped_total", None): 10,
        ("edgekv_store_evicted_total", "ram"): 11, ("edgekv_store_evicted_total", "disk"): 12,
        ("edgekv_store_refused_total", "disk"): 13, ("edgekv_store_refused_total", "remote"): 14,
        ("edgekv_tier_errors_total", "disk"): 15, ("edgekv_tier_errors_total", "remote"): 16,
        ("edgekv_store_outages_total", "disk"): 15, ("edgekv_store_outages_total", "remote"): 16}


def keep(server: Server, first: int) -> None:
    """A prompt whose blocks are kept."""
    body = {"prompt": [first, *range(260, 350)] * 6, "n_predict": 2, "ignore_eos": True}
    assert ask(server, "/completion", body=body).status == 200


def test_a_store_that_fails_says_so(synthetic, tmp_path):
    """A file takes the folder's place: nothing can be written there, and the endpoint tells."""
    folder = tmp_path / "kept"
    folder.mkdir()
    with Server(options(synthetic("llama"), store=StoreSettings(8 << 20, folder, 1 << 30))) as server:
        keep(server, 351)
        assert server.prefixes is not None
        server.prefixes.flush()
        settled(server)
        until(lambda: exposed(server)["edgekv_store_waiting_writes", ()] == 0)
        found, kept = exposed(server), server.prefixes.figures()
        assert found["edgekv_tier_errors_total", (("tier", "disk"),)] == 0 < kept["disk_bytes"]
        assert [found["edgekv_tier_used_bytes", (("tier", f"store_{place}"),)] for place in ("ram", "disk")] == [kept["ram_bytes"], kept["disk_bytes"]]
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        folder.rmdir()
        folder.write_text("in the way")
        keep(server, 352)
        until(lambda: exposed(server)["edgekv_tier_errors_total", (("tier", "disk"),)] > 0)
        assert exposed(server)["edgekv_store_waiting_writes", ()] > 0, "it is written when the folder is back"


# ---- requests ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(synthetic):
    with Server(options(synthetic("llama"), limits=ServerLimits(max_queue=2), alias='a "name"\\')) as server:
        yield server


def families(server: Server) -> dict[str, Metric]:
    reply = ask(server, "/metrics")
    assert reply.status == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4"), reply.headers
    found = list(text_string_to_metric_families(reply.text))
    names = [family.name for family in found]
    assert len(names) == len(set(names)), "each stands there once"
    assert all(name.startswith(("edgekv_", "vllm:", "llamacpp:")) for name in names), "all is one exposition"
    assert {family.type for family in found} <= {"gauge", "counter", "histogram"}, "each has a type, upstream's too"
    assert all(family.documentation for family in found), "each says what it is"
    assert reply.text.endswith("\n"), "the last line is whole"
    return {family.name: family for family in found}


def histogram(family: Metric) -> tuple[list[float], float, float]:
    """(counts up to each bound, count of all, sum)."""
    assert family.type == "histogram", family.name
    by_name: dict[str, list] = {}
    for sample in family.samples:
        by_name.setdefault(sample.name.removeprefix(family.name), []).append(sample)
    bounds = [float(sample.labels["le"]) for sample in by_name["_bucket"]]
    counts = [sample.value for sample in by_name["_bucket"]]
    ((total,), (total_s,)) = by_name["_count"], by_name["_sum"]
    assert bounds == sorted(bounds) and bounds[-1] == float("inf"), f"{family.name}: bounds {bounds}"
    assert counts == sorted(counts), f"{family.name}: a count up to a higher bound is lower"
    assert counts[-1] == total.value, f"{family.name}: the last bucket is not all"
    return counts, total.value, total_s.value


def test_each_wait_is_counted_once(served):
    """The server has one slot: of three requests two wait, and it refuses the fourth."""
    before = {name: histogram(families(served)[name]) for name in TWINS.values() if name.endswith("_seconds")}
    n_answers, n_tokens = 3, 30
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(complete, served, seed, 300, n_tokens) for seed in range(n_answers)]
        for answer in answers:
            answer.result()
    settled(served)
    assert exposed(served)["edgekv_worst_gap_seconds", ()] == native.pacing().worst_gap_s > 0
    found = {name: histogram(families(served)[name]) for name in before}
    grown = {name: (found[name][1] - before[name][1], found[name][2] - before[name][2]) for name in before}
    assert grown["edgekv_queue_time_seconds"][0] == grown["edgekv_time_to_first_token_seconds"][0] == n_answers
    assert grown["edgekv_inter_token_latency_seconds"][0] == n_answers * (n_tokens - 1)
    assert 0 < grown["edgekv_queue_time_seconds"][1] < grown["edgekv_time_to_first_token_seconds"][1], "who waits for a token waited for a slot"
    assert grown["edgekv_inter_token_latency_seconds"][1] < grown["edgekv_queue_time_seconds"][1] + grown["edgekv_time_to_first_token_seconds"][1]


def test_who_runs_and_who_waits(served):
    """The figures count refused requests too."""
    refused = exposed(served)["edgekv_requests_refused_total", ()]
    body = {"prompt": [1, 300, 301], "n_predict": 900, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(send, served.url, "/completion", body) for _ in range(5)]
        seen = set()
        while not all(answer.done() for answer in answers):
            now = exposed(served)
            seen.add((now["edgekv_requests_running", ()], now["edgekv_requests_waiting", ()]))
        statuses = sorted(answer.result().status for answer in answers)
    assert statuses.count(503) >= 1 and {running for running, _ in seen} <= {0, 1} and max(map(sum, seen)) == 3, seen
    settled(served)
    until(lambda: exposed(served)["edgekv_requests_waiting", ()] == exposed(served)["edgekv_requests_running", ()] == 0)
    after = exposed(served)
    assert after["edgekv_requests_refused_total", ()] == refused + statuses.count(503)


def test_vllms_names_have_the_same_numbers(served):
    complete(served)
    settled(served)
    found = families(served)
    assert set(TWINS) == {metric.name for metric in metrics.VLLM} == {name for name in found if name.startswith("vllm:")}
    for name, ours in TWINS.items():
        assert found[name].type == found[ours].type
        of_model = [(sample.name.replace(name, ours), {**sample.labels}, sample.value) for sample in found[name].samples]
        assert all(labels.pop("model_name") == 'a "name"\\' for _, labels, _ in of_model)
        assert of_model == [(sample.name, sample.labels, sample.value) for sample in found[ours].samples]
