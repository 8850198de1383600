"""Models before they are loaded: where they are, and what a GGUF file says about its shape."""

from edgekv.models.default import default_model
from edgekv.models.geometry import Geometry, geometry

__all__ = ["Geometry", "default_model", "geometry"]
