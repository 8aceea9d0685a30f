"""Print what pyproject.toml asks for: build tools, run-time packages and the extras in use."""

import tomllib
from pathlib import Path

EXTRAS = ("dev", "docs", "report")

config = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
wanted = [*config["build-system"]["requires"], *config["project"]["dependencies"]]
for extra in EXTRAS:
    wanted += config["project"]["optional-dependencies"][extra]
print("\n".join(wanted))
