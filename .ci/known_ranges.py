"""Write privml/backbones/known_ranges.json: calibrate every named model anew (seconds each)."""

from pathlib import Path

import msgspec

from privml.backbones.known_ranges import entry_of
from privml.backbones.loader import KNOWN_MODELS, load_encoder
from privml.backbones.ranges import default_ranges

encoders = [load_encoder(name) for name in KNOWN_MODELS]
entries = dict(entry_of(encoder, default_ranges(encoder)) for encoder in encoders)
text = msgspec.json.format(msgspec.json.encode(entries), indent=1)
Path("privml/backbones/known_ranges.json").write_bytes(text + b"\n")
