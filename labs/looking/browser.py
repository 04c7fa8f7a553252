"""Headless Chromium without a network, driven by chromedriver's plain HTTP (W3C WebDriver)."""

import base64
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time

from faults.place import LabError

NOWHERE = "127.0.0.1:1"
"""A proxy that answers at once that it is not there."""
PATIENCE = 120


class Browser:
    """A session with a profile of its own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="lastdrop-look-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.session = None
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "HOME": self.folder, "TMPDIR": self.folder})
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._request("GET", "/status")
                break
            except OSError:
                if self.driver.poll() is not None or time.monotonic() > end:
                    raise LabError("chromedriver does not come up (Debian: chromium-driver)") from None
                time.sleep(0.05)
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                            "--disable-background-networking", "--disable-component-update", f"--proxy-server={NOWHERE}",
                            "--proxy-bypass-list=<-loopback>", f"--user-data-dir={self.folder}/profile"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.session = self._request("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, json.dumps(body or {}) if method == "POST" else None, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and value.get("error"):
            raise LabError(f"{path.rsplit('/', 1)[-1]}: {value['error']}: {value.get('message', '')[:400]}")
        return value

    def ask(self, path, body=None):
        return self._request("POST", f"/session/{self.session}{path}", body)

    def go(self, url):
        self.ask("/url", {"url": url})

    def run(self, script):
        """What a script returns; promises are waited for."""
        return self.ask("/execute/sync", {"script": script, "args": []})

    def devtools(self, command, **params):
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": params})

    def console(self):
        """What the console has said since one has looked."""
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]

    def requests(self, page):
        """URLs that a page has asked for since one has looked, its own among them. The browser's first page has its own ways."""
        events = [json.loads(entry["message"])["message"] for entry in self.ask("/se/log", {"type": "performance"})]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent if one.get("documentURL") == page]

    def shape(self, width, height, scheme):
        """The window, and whether its reader likes it light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path):
        """All of the page, as PNG; its width is that of the window."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                             clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        if self.session:
            try:
                self._request("DELETE", f"/session/{self.session}")
            except (LabError, OSError, ValueError):
                pass
        self.driver.terminate()
        try:
            self.driver.wait(20)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
