"""A real server, a real gallery and a real browser for the tests of the page."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from midspan.service.settings import GallerySettings, ServerSettings, Settings
from tests.service.page.shop import Shop, make_shop

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SIZES = [
    pytest.param({"width": 1280, "height": 800, "color_scheme": "light"}, id="1280x800-light"),
    pytest.param(
        {"width": 390, "height": 844, "color_scheme": "dark", "has_touch": True}, id="390x844-dark"
    ),
]
PATIENCE = 90_000  # ms; the machine may be busy with other tests


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Serve until the block ends; the address it is reached at."""
    import uvicorn

    from midspan.service.server import build

    server = uvicorn.Server(
        uvicorn.Config(
            build(settings),
            host="127.0.0.1",
            port=0,
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return make_shop(tmp_path_factory.mktemp("page"))


@dataclass
class Visit:
    """One page with a record of all that a good page never does."""

    page: Any
    base: str
    problems: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of console errors that the test provokes

    def go(self, view: str) -> None:
        self.page.goto(f"{self.base}/#/{view}")

    def ids(self) -> list[str]:
        texts: list[str] = self.page.eval_on_selector_all(
            "#grid > [data-id]", "all => all.map(one => one.dataset.id)"
        )
        return texts

    def overflow(self) -> int:
        pixels: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return pixels


Visitor = Callable[..., Visit]


Served = Callable[[Settings], str]


@pytest.fixture
def served() -> Iterator[Served]:
    """served(settings): the address of a server that outlives the visits of the test."""
    with ExitStack() as servers:
        yield lambda settings: servers.enter_context(running(settings))


@pytest.fixture
def look() -> dict[str, Any]:
    """The window of a visit; modules that hold in every window are parametrised with SIZES."""
    return {"width": 1280, "height": 800}


@pytest.fixture
def visitor(browser: Any, look: dict[str, Any]) -> Iterator[Visitor]:
    """visitor(base, width=1280, …); at the end: no errors, no violations, no other origin."""
    visits: list[Visit] = []

    def visit(
        base: str,
        *,
        expected: tuple[str, ...] = (),
        ready: str = "#grid > li",
        **options: Any,
    ) -> Visit:
        window = {**look, **options}
        viewport = {"width": window.pop("width"), "height": window.pop("height")}
        context = browser.new_context(viewport=viewport, **window)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        made = Visit(page, base, expected=expected)
        page.add_init_script(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation',"
            " (event) => window.violations.push(event.violatedDirective + ' ' + event.blockedURI));"
        )
        page.on("console", lambda message: _note(made, message.type, message.text))
        page.on("pageerror", lambda error: made.problems.append(f"page error: {error}"))
        page.on("dialog", lambda dialog: made.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _same_origin(made, request.url))
        page.goto(f"{base}/")
        page.wait_for_selector(ready)
        visits.append(made)
        return made

    yield visit
    for made in visits:
        assert made.page.evaluate("window.violations") == []
        assert made.page.evaluate("window.hacked") is None
        made.page.context.close()
        assert made.problems == []


def _note(made: Visit, kind: str, text: str) -> None:
    if kind in ("error", "warning") and not any(part in text for part in made.expected):
        made.problems.append(f"{kind}: {text}")


def _same_origin(made: Visit, url: str) -> None:
    if not url.startswith((made.base + "/", "blob:" + made.base, "data:")):
        made.problems.append(f"another origin: {url}")


def settings_of(shop: Shop, *, server: ServerSettings | None = None, **more: Any) -> Settings:
    one = GallerySettings(
        gallery=shop.location,
        encoder=str(shop.old),
        new_encoder=str(shop.new),
        images=(shop.images,),
        **more,
    )
    return Settings(galleries=(one,), server=server or ServerSettings())


@pytest.fixture(scope="module")
def base(shop: Shop) -> Iterator[str]:
    """A server that stays as it is: for searches only."""
    with running(settings_of(shop)) as address:
        yield address


@pytest.fixture
def fresh(tmp_path: Path) -> Shop:
    return make_shop(tmp_path)
