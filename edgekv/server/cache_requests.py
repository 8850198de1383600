"""Answers requests for /edgekv/cache: a client lists, keeps and removes the prompts of its own namespace."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.common.units import parse_duration
from edgekv.prefix_cache.kept_prompts import Kept, KeptPrompt
from edgekv.prefix_cache.named import find_id
from edgekv.server.slot_tokens import SlotTokens

log = logging.getLogger("edgekv")

MOST_TTL_S = 366 * 24 * 3600.0

Fields = Mapping[str, Any]
Answer = tuple[int, dict[str, Any]]


class CacheRequests:
    """`kept`: what each store keeps of a namespace. Threads of requests call it, several at a time."""

    def __init__(self, kept: Callable[[str], list[Kept]], slot_tokens: SlotTokens):
        self._kept, self._slot_tokens = kept, slot_tokens

    def answer(self, method: str, space: str, fields: str) -> tuple[int, str]:
        """The HTTP status, and a JSON text. fields: of the query and the body, a JSON object."""
        answers = {"GET": self._list, "POST": self._stay, "DELETE": self._remove}
        try:
            given = json.loads(fields)
            if method == "GET" and "slot" in given:
                _check(given, ("slot", "first", "n"))
                status, body = 200, {"tokens": self._slot_tokens.of(space, *(_whole(given, name) for name in ("slot", "first", "n")))}
            else:
                status, body = answers[method](self._kept(space), given)
            if method == "DELETE":
                self._slot_tokens.forget(space)
        except ConfigError as error:
            status, body = 400, _error(400, "invalid_request_error", str(error))
        except EdgeKVError as error:
            status, body = 500, _error(500, "server_error", str(error))
        except Exception:
            log.exception("a request for kept prompts failed")
            status, body = 500, _error(500, "server_error", "the request failed; the server's log has the reason")
        return status, json.dumps(body)

    def _list(self, kept: list[Kept], fields: Fields) -> Answer:
        _check(fields, ())
        prompts = sorted((prompt for one in kept for prompt in one.prompts()), key=lambda prompt: (prompt.unused_s or 0.0, prompt.id))
        return 200, {"object": "list", "data": [_row(prompt) for prompt in prompts]}

    def _stay(self, kept: list[Kept], fields: Fields) -> Answer:
        _check(fields, ("id", "ttl"))
        ttl_s = _ttl_s(fields.get("ttl"))
        one, prompt = _find(kept, fields)
        one.stay(prompt, ttl_s)
        return 200, _row(next((now for now in one.prompts() if now.leaf == prompt.leaf), prompt))

    def _remove(self, kept: list[Kept], fields: Fields) -> Answer:
        _check(fields, ("id", "all"))
        everything = fields.get("all") in (True, "true", "1")
        if everything == ("id" in fields):
            raise ConfigError("name the kept prompt to remove as 'id', or all as 'all': true, and only one of these")
        if not everything:
            one, prompt = _find(kept, fields)
            if prompt.pins:
                raise ConfigError(f"{prompt.id} is pinned as {prompt.pins[0]} on the server's machine; `edgekv cache unpin` takes that name from it")
            return 200, {"removed": 1, "bytes": one.remove([prompt]), "pinned": 0}
        doomed = [(one, [prompt for prompt in prompts if not prompt.pins], len(prompts)) for one in kept for prompts in [one.prompts()]]
        n = sum(len(prompts) for _, prompts, _ in doomed)
        return 200, {"removed": n, "bytes": sum(one.remove(prompts) for one, prompts, _ in doomed), "pinned": sum(all_ for *_, all_ in doomed) - n}


def _find(kept: list[Kept], fields: Fields) -> tuple[Kept, KeptPrompt]:
    start = fields.get("id")
    if not isinstance(start, str):
        raise ConfigError("the field 'id' must be the beginning of a kept prompt's ID; GET /edgekv/cache lists them")
    of = {prompt.leaf: (one, prompt) for one in kept for prompt in one.prompts()}
    return find_id(of, start, f"no kept prompt has an ID that begins with {start!r}; GET /edgekv/cache lists them")


def _whole(fields: Fields, name: str) -> int:
    given = str(fields.get(name))
    if not given.isdecimal():
        raise ConfigError(f"the field {name!r} must be a whole number; a slot's tokens are those of 'slot' from 'first' on, 'n' of them")
    return int(given)


def _ttl_s(given: Any) -> float:
    seconds = parse_duration(given, "'ttl'") if isinstance(given, str) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MOST_TTL_S:
        raise ConfigError("the field 'ttl' must be a time such as \"12h\", or a number of seconds, of 366 days at most; 0 takes the time away")
    return float(seconds)


def _check(fields: Fields, known: tuple[str, ...]) -> None:
    if unknown := sorted(set(fields) - {*known, "cache_salt"}):
        raise ConfigError(f"the field {unknown[0]!r} is not known here; there are: {', '.join((*known, 'cache_salt'))}")


def _row(prompt: KeptPrompt) -> dict[str, Any]:
    return {"id": prompt.id, "tokens": prompt.n_tokens, "bytes": prompt.n_bytes, "places": prompt.places, "reading": prompt.reading.name.lower(),
            "unused_s": None if prompt.unused_s is None else round(prompt.unused_s, 1), "ttl_s": max(0, round(prompt.until - time.time())), "pins": prompt.pins}


def _error(code: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind}}
