"""The application without a server before it."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from proxemic.serve.access import Access
from proxemic.serve.app import make_app
from proxemic.serve.engine import Engine
from proxemic.serve.limits import Limits


def test_a_fault_of_ours_is_printed_and_answered(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("oh")

    engine = Engine(str(shelf / "shop"))
    monkeypatch.setattr(engine, "browse", fail)
    app = make_app(engine, Access("localhost", None), Limits())
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/items")
    assert answer.status_code == 500
    assert "oh" not in answer.json()["detail"]
    assert "KeyError: 'oh'" in capsys.readouterr().err
