"""Rates that no machine has, for plans whose numbers can be reckoned by hand."""

from __future__ import annotations

from edgekv.rates.host import AttentionRates, KernelRates

ATTENTION = AttentionRates(exact=KernelRates(1e-5, 30e-9, 30e-9, 30e-9, 20e-9), flash=KernelRates(2e-5, 40e-9, 160e-9, 160e-9, 90e-9),
                           plain=KernelRates(3e-5, 60e-9, 60e-9, 60e-9, 80e-9), row=40e-9, scan=5e-9)
