"""`python -m controller.describe`: writes docs/openapi.json anew."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from adaptive.settings import Settings
from controller.app import create_app


def main() -> None:
    """Describe the API of this version."""
    with tempfile.TemporaryDirectory() as home:
        app = create_app(Settings(home=Path(home), admin_key="describes"))
        text = json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"
        app.state.control.database.close()
    (Path(__file__).parents[1] / "docs" / "openapi.json").write_text(text)


if __name__ == "__main__":
    main()
