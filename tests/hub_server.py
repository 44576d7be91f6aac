"""A stand-in for the hub on this machine: one repository, whose files it gives, or one of the ways in which the hub
refuses.
"""

import json
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "1" * 40
REFUSALS = {
    "no revision": (404, "RevisionNotFound", "Invalid rev id"),
    "gated": (403, "GatedRepo", "Access to this model is restricted"),
    "no repository": (404, "RepoNotFound", "Repository not found"),
    "out of order": (503, "", "Service Unavailable"),
}


class HubServer:
    """Serves a folder as `someone/model`; `mode` names a refusal, or is empty."""

    def __init__(self, folder: Path):
        self.folder, self.mode, self.asked = folder, "", []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append(self.path)
                if server.mode:
                    status, code, words = REFUSALS[server.mode]
                    headers = {"X-Error-Code": code, "X-Error-Message": words} if code else {}
                    return self.answer(status, json.dumps({"error": words}).encode(), headers)
                if "/tree/" in self.path:
                    return self.answer(200, json.dumps(server.tree()).encode(), {"Content-Type": "application/json"})
                name = self.path.split("?")[0].rsplit(f"/resolve/{COMMIT}/", 1)[-1]
                data = (server.folder / name).read_bytes()
                return self.answer(200, data, {"ETag": f'"{sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})

            do_HEAD = do_GET

            def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, daemon=True).start()

    def tree(self) -> list[dict]:
        """As the hub lists the files of a commit."""
        files = [p for p in sorted(self.folder.rglob("*")) if p.is_file()]
        return [
            {
                "type": "file",
                "path": p.relative_to(self.folder).as_posix(),
                "size": p.stat().st_size,
                "oid": sha1(p.read_bytes()).hexdigest(),
            }
            for p in files
        ]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
