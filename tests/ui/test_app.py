"""The running app as programs see it: its two endpoints through gradio_client and MCP, and what it hides."""

import ast
import asyncio
import base64
import os
from pathlib import Path
from types import SimpleNamespace

import fakes
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from captioners.lab import Lab
from captioners.types import Result, from_json
from captioners.ui.components import examples
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.studio import Studio


@pytest.fixture(scope="module")
def client():
    with pytest.MonkeyPatch.context() as patch:
        fakes.use_fakes(patch, fakes.Echo, fakes.Shout)
        page = build(Studio(lambda: Lab(fakes.profile())))
        _, url, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options())
        try:
            yield Client(url, verbose=False)
        finally:
            page.close()


PICTURE = handle_file(examples.PICTURES[0])


def test_only_the_documented_endpoints_show(client):
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    assert sorted(endpoints) == ["/caption", "/compare"]
    for endpoint in endpoints.values():
        first, *others = endpoint["parameters"]
        assert first["parameter_name"] == "media"
        assert all(p["parameter_has_default"] for p in others)
        assert {"guidance_scale", "seed", "volume", "forced"} < {p["parameter_name"] for p in others}


def test_compare_runs_every_method_that_can(client):
    answer = client.predict(PICTURE, api_name="/compare")
    results = [from_json(Result, r) for r in answer["results"]]
    assert [r.method for r in results] == ["echo", "shout"]
    assert results[0].scores["clipscore"].encoder == "hash-8"
    assert [r["method"] for r in client.predict(handle_file(examples.SOUNDS[0]), api_name="/compare")["results"]] == [
        "echo"
    ]


def test_caption_takes_controls_and_forced_tokens(client):
    answer = client.predict(
        PICTURE, method="echo", guidance_scale=3, seed=5, forced={"2": "there"}, api_name="/caption"
    )
    (result,) = answer["results"]
    assert result["caption"].endswith("there")
    assert (result["settings"]["guidance_scale"], result["seed"]) == (3.0, 5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"guidance_scale": 99}, "guidance_scale = 99"),
        ({"method": "echo", "volume": "loud"}, "no control called 'volume'"),
    ],
)
def test_a_bad_setting_is_an_error_with_its_sentence(client, arguments, sentence):
    with pytest.raises(AppError, match=sentence):
        client.predict(PICTURE, **arguments, api_name="/caption")


def test_a_broken_file_is_an_error_with_its_sentence(client, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    with pytest.raises(AppError, match="not a picture or a sound that can be read"):
        client.predict(handle_file(broken), api_name="/compare")


def test_a_language_model_finds_and_uses_both_tools(client):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    picture = "data:image/jpeg;base64," + base64.b64encode(Path(examples.PICTURES[0]).read_bytes()).decode()

    async def use() -> tuple:
        async with (
            streamable_http_client(f"{client.src}gradio_api/mcp/") as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            return tools, await session.call_tool(
                "caption", {"media": picture, "method": "echo", "seed": 5, "forced": {"2": "there"}}
            )

    tools, answer = asyncio.run(use())
    assert [t.name for t in tools] == ["compare", "caption"]
    for tool in tools:
        assert tool.description.startswith("Caption one picture or sound with")
        assert all(p.get("description") for p in tool.inputSchema["properties"].values())
    (result,) = ast.literal_eval(answer.content[0].text)["results"]  # Gradio writes it as Python does
    assert result["caption"].endswith("there")


def test_analytics_are_off_and_the_queue_is_bounded():
    page = build(Studio(lambda: Lab(fakes.profile())))
    assert page.analytics_enabled is False
    assert page._queue.max_size


def test_app_py_serves_where_it_is_told_and_warms_up_behind_the_page(monkeypatch, tmp_path):
    from captioners.ui import serve

    calls = []
    monkeypatch.setattr(
        serve, "build", lambda studio, profile, device, store: calls.append((profile, device)) or Page()
    )
    monkeypatch.setattr(serve.Studio, "warm_up", lambda self, path: calls.append(path))

    class Page:
        def launch(self, **options):
            calls.append((options["server_name"], options["server_port"], options["max_file_size"] > 0))

        def block_thread(self):
            calls.append("blocked")

    serve.main(["--host", "0.0.0.0", "--port", "7000", "--device", "cpu", "--store", str(tmp_path / "votes.sqlite")])
    assert calls[:2] == [("embedded", "cpu"), ("0.0.0.0", 7000, True)]
    assert {examples.PICTURES[0], "blocked"} <= set(calls[2:])
    with pytest.raises(SystemExit):
        serve.main(["--profile", "nothing"])


def test_a_space_is_told_by_its_environment(monkeypatch, tmp_path, capsys):
    from captioners.ui import serve

    monkeypatch.setenv("CAPTION_LAB_STORE", str(tmp_path / "votes.sqlite"))
    opened = []
    monkeypatch.setattr(serve, "Lab", lambda *arguments: opened.append(arguments))
    monkeypatch.setattr(serve, "build", lambda *_: SimpleNamespace(launch=lambda **_: None, block_thread=lambda: None))
    monkeypatch.setattr(serve.Studio, "warm_up", lambda self, path: None)
    environment = {"PROFILE": "hub", "MODELS": "models.toml", "CHECKPOINTS": os.pathsep.join(["one", "two"])}
    for name, value in environment.items():
        monkeypatch.setenv(f"CAPTION_LAB_{name}", value)
    serve.main(["--device", "cpu"])
    serve.main(["--device", "cpu", "--models", "mine.toml", "--checkpoint", "three"])  # what is typed comes first
    assert (tmp_path / "votes.sqlite").is_file()
    assert opened == [("hub", "cpu", "models.toml", ["one", "two"]), ("hub", "cpu", "mine.toml", ["three"])]
    monkeypatch.undo()
    monkeypatch.setenv("CAPTION_LAB_PROFILE", "nothing")
    with pytest.raises(SystemExit):
        serve.main([])
    assert "choose from embedded, hub" in capsys.readouterr().err
