"""What was found of a prompt: the part of a hit that serves, and the counts that the server gets."""

import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from edgekv._native import http_server as native
from edgekv._native.prefix_callbacks import CachedTokens, Medium
from edgekv.common.enums import MissReason
from edgekv.prefix_cache.results import BlockPiece, Miss, PrefixHit, pieces_up_to
from edgekv.server.media import whole_media

log = logging.getLogger("edgekv")


def whole(pieces: Sequence[BlockPiece], media: Sequence[Medium]) -> tuple[BlockPiece, ...]:
    """The pieces, cut at the beginning of a medium in which they end."""
    return pieces_up_to(pieces, whole_media(media, pieces[-1].first + pieces[-1].n)) if pieces else ()


def count(pieces: Sequence[BlockPiece], **more: Any) -> CachedTokens:
    """Tokens of a hit's first pieces by their places, and other fields."""
    def of(place: str) -> int:
        return sum(piece.n for piece in pieces if piece.source == place)

    return CachedTokens(ram=of("ram"), disk=of("disk"), remote=of("remote"), **more)


def worth(hit: PrefixHit) -> PrefixHit:
    """Drop the end of a hit that is faster to compute than to load, by the rates measured so far."""
    n = hit.worth(native.reading_s)
    if n == len(hit.pieces):
        return hit
    rest = hit.pieces[n:]
    log.info("%d kept tokens of a prompt are computed: by measured speeds that takes %.3g s, and loading them from %s takes longer",
             sum(piece.n for piece in rest), sum(native.reading_s(piece.first, piece.n) for piece in rest),
             " and ".join(sorted({piece.source for piece in rest if piece.coming})))
    return hit.cut(n, MissReason.CHEAPER_TO_COMPUTE)


def before_media(hit: PrefixHit, media: Sequence[Medium]) -> PrefixHit:
    """The hit, cut at the beginning of a medium in which it ends."""
    n = whole_media(media, hit.end)
    return hit if n == hit.end else replace(hit, pieces=pieces_up_to(hit.pieces, n), missed=Miss(MissReason.INSIDE_MEDIA, n))
