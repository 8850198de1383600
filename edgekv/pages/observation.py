"""One run, as policies, prefetchers and the page table see it."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace


class Observation(Struct, frozen=True):
    """The tokens since the last run. Arrays are views, valid during the call."""

    mass_sum: np.ndarray
    """float32 [layer, head, page]: attention mass, summed over the query heads of the group and over the query tokens. In mode sparse it is
    an estimate from the rows that were read, right on average over tokens."""
    mass_max: np.ndarray
    """The same, the maximum over the query heads."""
    n_tokens: int
    observed: bool
    """False if no mass was kept: stock nodes read a prompt, or the option `observe` or `observe_prompt` is off. The mass is then zero and
    says nothing."""
    changed: np.ndarray
    """int [n]: pages with a cell that changed since the last run, ascending; storing a token is a change."""
    page_positions: np.ndarray
    """int32 [page]: the newest position in the page; -1: the page is empty."""
    position: int
    """The newest position stored in this run; -1: none."""
    n_used_end: int
    """All pages from this one on are empty."""
    n_budget: int = 0
    """Pages that a head may keep, attend or have in the arena on average, those that are always taken included. 0: unknown."""
    n_unobserved: int = 0
    """Tokens of the run that were not observed: all of a prompt but the last ones of each stream. They come before those whose mass this is."""
    in_prompt: bool = False
    """Some tokens are a prompt's, as the server and the chat say."""
    streams: np.ndarray | None = None
    """int [stream, 3]: tokens of each stream, those that were observed, and those of a prompt. None: there is one stream."""
    copies: tuple[tuple[int, int], ...] = ()
    """(stream, its source): since the last run the cells of the source, whose own were no such copy, replaced all of the stream's."""

    def of_stream(self, stream: int, pages: slice) -> "Observation":
        """The run as this stream alone would see it; its pages count from 0."""
        assert self.streams is not None
        n_tokens, n_observed, n_prompt = self.streams[stream].tolist()
        changed = self.changed[(self.changed >= pages.start) & (self.changed < pages.stop)] - pages.start
        positions = self.page_positions[pages]
        used = np.flatnonzero(positions >= 0)
        return replace(
            self, mass_sum=self.mass_sum[:, :, pages], mass_max=self.mass_max[:, :, pages], n_tokens=n_observed or n_tokens,
            observed=self.observed and n_observed > 0, changed=changed, page_positions=positions,
            position=int(positions[changed].max(initial=-1)), n_used_end=int(used[-1]) + 1 if len(used) else 0,
            n_unobserved=n_tokens - n_observed if n_observed else 0,
            in_prompt=n_prompt > 0, streams=None, copies=())
