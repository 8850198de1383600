"""KvOptions and its four groups: an option is named once, is given flat, and lies in its group."""

import inspect
from dataclasses import FrozenInstanceError, fields

import pytest

from edgekv import Llama
from edgekv.common.enums import CacheType, KvMode, PromptReading
from edgekv.common.errors import ConfigError
from edgekv.config import (
    CacheOptions,
    EvictionOptions,
    Keep,
    KvOptions,
    PlacementOptions,
    SelectionOptions,
    option_kind,
    option_names,
)
from edgekv.config.setting_table import OF_KV, SETTINGS

import llama_cpp

GROUPS = {"cache": CacheOptions, "selection": SelectionOptions, "eviction": EvictionOptions, "placement": PlacementOptions}


def test_each_option_is_defined_once():
    names = [one.name for group in GROUPS.values() for one in fields(group)]
    assert len(names) == len(set(names)) and not set(names) & {one.name for one in fields(KvOptions)}
    assert option_names() == ["mode", *names]
    assert set(OF_KV) <= {"mode", *names} and len(OF_KV) == 19 and len({one.name for one in SETTINGS}) == len(SETTINGS)


def test_options_lie_in_their_groups():
    options = KvOptions(mode="sparse", sample_budget=1000, type_k="q8_0", evict_to=512, kv_budget=0)
    assert options == KvOptions(mode=KvMode.SPARSE, cache=CacheOptions(type_k=CacheType.Q8_0), selection=SelectionOptions(sample_budget=1000.0),
                                eviction=EvictionOptions(evict_to=Keep(512)), placement=PlacementOptions(kv_budget=0))
    assert hash(options) == hash(KvOptions(mode="sparse", sample_budget=1000, type_k="q8_0", evict_to=512, kv_budget=0))
    with pytest.raises(FrozenInstanceError):
        options.mode = KvMode.EXACT


def test_changes_leave_the_rest_of_their_group():
    options = KvOptions(sample_budget=1000, prompts="sparse", kv_vram=1 << 30)
    changed = options.with_(sample_budget=500, kv_vram=None)
    assert (changed.selection.sample_budget, changed.selection.prompts, changed.placement.kv_vram) == (500, PromptReading.SPARSE, None)
    assert changed.cache is options.cache
    whole = options.with_(selection=SelectionOptions(), exact_tokens=0)
    assert whole.selection == SelectionOptions(exact_tokens=0), "a group, and one of its options besides"


@pytest.mark.parametrize("make", [KvOptions, KvOptions.from_env, KvOptions().with_])
def test_an_option_that_there_is_not(make):
    with pytest.raises(ConfigError, match="there is no KV option 'sketches'; the options are: mode, page_size,"):
        make(sketches="b3")
    for old, new in (("keep", "evict_to"), ("resolution", "sample_budget"), ("prompt_resolution", "prompt_sample_budget")):
        with pytest.raises(ConfigError, match=f"^{old} is now called {new}$"):
            make(**{old: 64})
    for gone in ("sketch", "attend"):
        with pytest.raises(ConfigError, match=f"^{gone} is gone: mode sparse reads what its sketches choose, and sample_budget says how much$"):
            make(**{gone: "none"})


@pytest.mark.parametrize(("make", "said"), [
    (lambda: CacheOptions(page_size=20), "page_size is 20"), (lambda: SelectionOptions(sink_tokens=-1), "sink_tokens is -1"),
    (lambda: SelectionOptions(prompt_sample_budget=0), "such as 125"), (lambda: EvictionOptions(split="even"), "no budget split 'even'"),
    (lambda: PlacementOptions(plan_every=0), "plan_every is 0"), (lambda: KvOptions(mode="evict", evict_to=16, page_size=32), "less than one page")])
def test_each_group_checks_itself_and_the_whole_what_is_between(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_every_variable_reaches_its_option(monkeypatch):
    values = {"EDGEKV_KV": ("sparse", KvMode.SPARSE), "EDGEKV_PAGE_SIZE": ("64", 64), "EDGEKV_SAMPLE_BUDGET": ("12.5", 12.5),
              "EDGEKV_EVICT_TO": ("777", Keep(777)), "EDGEKV_OBSERVE_PROMPT": ("off", False), "EDGEKV_KV_BUDGET": ("2MiB", 2 << 20)}
    for name, (text, _) in values.items():
        monkeypatch.setenv(name, text)
    found = KvOptions.from_env()
    assert [value for _, value in values.values()] == [
        found.mode, found.cache.page_size, found.selection.sample_budget, found.eviction.evict_to, found.placement.observe_prompt,
        found.placement.kv_budget]
    assert KvOptions.from_env(page_size=16, evict_to=None).cache.page_size == 16, "an argument goes first"
    monkeypatch.setenv("EDGEKV_SAMPLE_BUDGET", "fine")
    with pytest.raises(ConfigError, match="EDGEKV_SAMPLE_BUDGET is 'fine'"):
        KvOptions.from_env()


def test_types_are_those_that_groups_declare():
    assert (option_kind("mode"), option_kind("prompts"), option_kind("keep_rows"), option_kind("kv_vram")) == (
        KvMode, PromptReading, bool, int | None)


def test_llama_takes_every_option(synthetic):
    """Llama takes each option by its name, and no name is one of llama_cpp's."""
    assert not set(option_names()) - {"type_k", "type_v"} & set(inspect.signature(llama_cpp.Llama.__init__).parameters)
    llama = Llama(str(synthetic("llama")), kv="sparse", sample_budget=500, page_size=32, observe=False, n_ctx=256, verbose=False)
    chosen = llama.kv.options
    assert (chosen.mode, chosen.selection.sample_budget, chosen.cache.page_size, chosen.placement.observe) == (KvMode.SPARSE, 500, 32, False)
    llama.close()
