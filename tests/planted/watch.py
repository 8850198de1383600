"""A plugin of pytest: tells in the file PLANTED_WATCH which test runs and which failed, and ends the process where one takes PLANTED_LIMIT seconds."""

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest


def _tell(what: str, test: str) -> None:
    with open(os.environ["PLANTED_WATCH"], "a") as file:
        file.write(f"{what} {test}\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _tell("at", item.nodeid)
    faulthandler.dump_traceback_later(float(os.environ["PLANTED_LIMIT"]), exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
    _tell("ended", item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell("failed", report.nodeid)
