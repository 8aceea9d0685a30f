"""Command line ``privml``."""

from __future__ import annotations

from privml._cli.main import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    main()
