"""edgekv.lab.heads.roles: what made-up attention makes of a head."""

import numpy as np
import pytest

from edgekv.lab.heads.roles import ROLES, UNKNOWN, Role, RoleMeter, of_steps

N_PAGES, N_STEPS = 64, 12


def steps(*heads: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Each head [step, page], as steps of one row."""
    return [(np.stack([head[step] for head in heads])[None], N_PAGES) for step in range(len(heads[0]))]


def head(sink: float, recent: float, where: str) -> np.ndarray:
    """[step, page]: the rest of the mass in the middle, `where` it goes: "fixed" on two pages, "moving" on other two in each
    step, "even" on all of them."""
    mass = np.zeros((N_STEPS, N_PAGES), np.float32)
    mass[:, 0] = sink
    mass[:, -4:] = recent / 4
    rest = 1 - sink - recent
    if where == "even":
        mass[:, 1:-4] += rest / (N_PAGES - 5)
    for step in range(N_STEPS if where != "even" else 0):
        first = 10 if where == "fixed" else 10 + 4 * step
        mass[step, first : first + 2] += rest / 2
    return mass


@pytest.mark.parametrize("sink, recent, where, expected", [
    (0.8, 0.1, "even", Role.ANCHOR),
    (0.1, 0.8, "even", Role.RECENCY),
    (0.1, 0.2, "moving", Role.RETRIEVAL),
    (0.7, 0.05, "moving", Role.RETRIEVAL),  # parks most of its mass, and searches with the rest
    (0.7, 0.2, "moving", Role.ANCHOR),  # too little of it in the middle
    (0.1, 0.2, "fixed", Role.OTHER),  # always the same pages
    (0.1, 0.2, "even", Role.OTHER),  # diffuse
    (0.45, 0.45, "even", Role.OTHER),
], ids=str)
def test_each_role(sink, recent, where, expected):
    profile = of_steps(steps(head(sink, recent, where)), 1, 1)
    assert ROLES[profile.roles()[0, 0]] is expected
    assert profile.names() == [[expected.value]]
    parts = [values[0, 0] for values in (profile.sink, profile.recent, profile.middle)]
    np.testing.assert_allclose(parts, [sink, recent, 1 - sink - recent], atol=1e-6)


def test_what_was_not_observed_has_no_role():
    profile = of_steps(steps(head(0.8, 0.1, "even"), np.zeros((N_STEPS, N_PAGES))), 1, 2)
    assert profile.roles().tolist() == [[ROLES.index(Role.ANCHOR), UNKNOWN]] and profile.names()[0][1] is None
    assert np.isnan(profile.sink[0, 1])


def test_pages_that_come():
    """Pages grow, and the middle with them: a fixed head stays fixed."""
    meter = RoleMeter(1, 1)
    for end in range(20, 40):
        mass = np.zeros((1, 1, 64), np.float32)
        mass[0, 0, [0, 7, end - 1]] = 0.2, 0.5, 0.3
        meter.add(mass, end)
    profile = meter.profile()
    assert profile.change[0, 0] == pytest.approx(0, abs=1e-6) and profile.recent[0, 0] == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("n_pages", [1, 2, 5, 6])
def test_few_pages(n_pages):
    """No middle, or one page of it."""
    meter = RoleMeter(1, 1)
    for _ in range(3):
        meter.add(np.full((1, 1, n_pages), 1.0), n_pages)
    profile = meter.profile()
    assert profile.sink[0, 0] + profile.recent[0, 0] + profile.middle[0, 0] == pytest.approx(1)
    assert profile.roles()[0, 0] != UNKNOWN
