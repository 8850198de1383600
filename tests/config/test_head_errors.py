"""An error in place of a resolution: what each head samples at, and which options may be given together."""

import numpy as np
import pytest

from edgekv.common.errors import ConfigError
from edgekv.config import HeadErrors, KvOptions, SelectionOptions
from edgekv.config.head_errors import LEAST, MOST

AT = (500.0, 2000.0, 8000.0)


def errors(*heads: float, power: float = 0.5) -> HeadErrors:
    """Heads of one layer with these errors at 2,000, which fall with a power of the resolution."""
    return HeadErrors(AT, tuple((tuple(head * (2000 / c) ** power for head in heads),) for c in AT))


@pytest.mark.parametrize("power", [0.4, 0.5, 0.8])
def test_a_head_that_falls_with_a_power_gets_its_resolution(power: float):
    for error in (0.01, 0.015, 0.02, 0.03):
        ((found,),) = errors(0.02, power=power).resolutions_for(error)
        assert found == pytest.approx(np.clip(2000 * (0.02 / error) ** (1 / power), LEAST, MOST), rel=0.05)  # it has two digits


@pytest.mark.parametrize("power", [0.5, 0.65, 0.8])
def test_the_mean_error_is_what_was_asked_for(power: float):
    """Heads with larger errors read more, by half of what would make all errors alike."""
    heads = np.array([0.01, 0.015, 0.02, 0.03])
    for error in (0.015, 0.02, 0.025):
        found = np.array(errors(*heads, power=power).resolutions_for(error)[0])
        assert LEAST < found.min() and found.max() < MOST
        assert np.mean(heads * (2000 / found) ** power) == pytest.approx(error, rel=0.02)
        np.testing.assert_allclose(found / found[0], (heads / heads[0]) ** (0.5 / power), rtol=0.06)


def test_each_part_of_a_bent_line_counts():
    """Between two measured resolutions the line between them, beyond them the next one."""
    bent = HeadErrors(AT, (((0.04,),), ((0.02,),), ((0.005,),)))
    at = {error: bent.resolutions_for(error)[0][0] for error in (0.04, 0.02, 0.01, 0.005, 0.0025)}
    assert at == {0.04: 500, 0.02: 2000, 0.01: 4000, 0.005: 8000, 0.0025: MOST}


def test_bounds_and_heads_that_say_nothing():
    noise = HeadErrors(AT, (((0.5, 0.0), ()), ((0.4, 0.0), ()), ((0.45, 0.0), ())))
    assert noise.resolutions_for(0.02) == ((MOST, 0.0), ()) and noise.resolutions_for(0.49)[0][0] == pytest.approx(880, rel=0.03)
    assert errors(1e-4, 1e-5).resolutions_for(0.02) == ((LEAST, LEAST),)
    assert HeadErrors(AT, (((), ()),) * 3).resolutions_for(0.02) == ((), ())


def test_smaller_errors_never_read_less():
    rng = np.random.default_rng(1)
    for _ in range(50):
        measured = HeadErrors(AT, tuple((tuple(np.exp(rng.uniform(-7, 0, 5)).tolist()),) for _ in AT))
        found = np.array([measured.resolutions_for(error)[0] for error in np.geomspace(0.001, 0.5, 30)])
        assert (np.diff(found, axis=0) <= 0).all()


@pytest.mark.parametrize("made", [
    lambda: HeadErrors((500.0,), (((0.1,),),)), lambda: HeadErrors(AT, (((0.1,),),) * 2), lambda: HeadErrors(AT[::-1], (((0.1,),),) * 3),
    lambda: HeadErrors(AT, (((0.1,),), ((0.1,),), ((0.1, 0.1),)))])
def test_what_is_no_measurement(made):
    with pytest.raises(ValueError, match="two resolutions or more, ascending, of the same heads"):
        made()


# ---- options -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "error"), [("1%", 0.01), ("0.5%", 0.005), (0.02, 0.02), ("0.02", 0.02), ("50%", 0.5), (None, None)])
def test_an_error_is_a_share(value, error):
    assert SelectionOptions(target_error=value).target_error == error


@pytest.mark.parametrize("value", ["0", "0%", 0, -0.01, "51%", 1, "much", "", "nan"])
def test_an_error_out_of_bounds(value):
    with pytest.raises(ConfigError, match=r"the target error is .*; it must be a share above 0% and up to 50%, such as 2% or 0\.02"):
        KvOptions(target_error=value)


def test_one_of_the_two_counts(monkeypatch):
    for make in (KvOptions, KvOptions.from_env, KvOptions().with_):
        with pytest.raises(ConfigError, match="target_error chooses a sample budget for each layer and head, and sample_budget is one for all; give one"):
            make(target_error="1%", sample_budget=2000)
    options = KvOptions(target_error="1%")
    assert options.with_(mode="exact").selection.target_error == 0.01, "another option leaves it"
    assert options.with_(sample_budget=500).selection == SelectionOptions(sample_budget=500.0), "the newer of the two counts"
    monkeypatch.setenv("EDGEKV_TARGET_ERROR", "2%")
    assert KvOptions.from_env().selection.target_error == 0.02
    assert KvOptions.from_env(sample_budget=500).selection == SelectionOptions(sample_budget=500.0), "an argument counts more than a variable"
    monkeypatch.setenv("EDGEKV_SAMPLE_BUDGET", "300")
    assert KvOptions.from_env(target_error="1%").selection.target_error == 0.01
    with pytest.raises(ConfigError, match="give one of the two"):
        KvOptions.from_env()


def test_where_an_error_has_no_effect():
    with pytest.raises(ConfigError, match="error works in mode sparse only, and the mode is exact"):
        KvOptions(mode="exact", target_error="1%").check_effect({"target_error"})


def test_resolutions_follow_from_both():
    asked = SelectionOptions(target_error=0.01)
    assert asked.lacks_head_errors and asked.resolutions is None and asked.typical_resolution == 2000 and asked.sampled_by == ("target error", "1 %")
    known = SelectionOptions(target_error=0.01, head_errors=errors(0.01, 0.01, 0.0))
    assert not known.lacks_head_errors and known.resolutions == ((2000.0, 2000.0, 0.0),)
    known = SelectionOptions(target_error=0.02, sample_budget=8000, head_errors=errors(0.04, 0.0))
    assert known.resolutions == ((8000.0, 0.0),) and known.typical_resolution == pytest.approx(8000)
    assert SelectionOptions(head_errors=errors(0.005)).resolutions is None and SelectionOptions().sampled_by == ("sample budget", "2,000")
    with pytest.raises(ConfigError, match="head_errors is 'x'"):
        SelectionOptions(head_errors="x")
