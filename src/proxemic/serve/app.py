"""The routes: the page, and the JSON interface that it uses itself."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from proxemic.conditions import read_conditions
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.image_formats import ENDINGS, FORMATS_TEXT
from proxemic.pages import environment
from proxemic.serve import answers
from proxemic.serve.guard import POLICY
from proxemic.serve.limits import Limits
from proxemic.serve.messages import (
    About,
    Browse,
    Conditions,
    Embed,
    Item,
    Original,
    Refused,
    Search,
    Thumbnail,
)
from proxemic.serve.process import WorkerProcess

with optional_dependency("serve"):
    import python_multipart  # noqa: F401 - which FastAPI needs for uploads
    from fastapi import Depends, FastAPI, File, HTTPException, Query, Request, Response, UploadFile
    from fastapi import Path as InPath
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi.security import HTTPBearer
    from starlette.exceptions import HTTPException as Unrouted

_FOLDER = Path(__file__).parent
_PRIVATE = {"Cache-Control": "private, max-age=300"}

Where = Annotated[
    list[str], Query(max_length=32, description="COLUMN=VALUE, as label=shoe; any of the values of a column will do")
]
Neighbours = Annotated[int, Query(ge=1, le=1000, description="neighbours")]
Id = Annotated[int, InPath(alias="id", ge=0, lt=2**63, description="the picture's number in the gallery")]
Picture = Annotated[UploadFile, File(description=FORMATS_TEXT)]


def make_app(worker: WorkerProcess, limits: Limits, title: str, *, with_token: bool) -> FastAPI:
    """The application that asks a worker process, which is not begun before it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.attach()
        yield
        await worker.stop()

    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": answers.Problem} for status in (401, 404, 408, 413, 415, 421, 422, 503, 504)
    }
    app = FastAPI(
        title=f"proxemic serve {title}",
        version=version("proxemic"),
        lifespan=lifespan,
        responses=problems,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if with_token else [],
        docs_url=None,  # pages that load their scripts from elsewhere
        redoc_url=None,
    )
    template = environment(_FOLDER).get_template("page.html")
    page = template.render(
        title=f"Search {title}",
        scripts=[],
        bytes=limits.bytes,
        endings=",".join(ENDINGS),
        policy=POLICY.replace("frame-ancestors 'none'; ", ""),  # which only a header may have
    )
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")

    async def ask(question: Any) -> Any:
        return await worker.ask(question, limits.seconds)

    @app.exception_handler(Refused)
    async def refuse(_: Request, refused: Refused) -> JSONResponse:
        return JSONResponse({"detail": refused.why}, refused.status, refused.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameters(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _sentence(error.errors()[0])}, 422)

    @app.exception_handler(Unrouted)
    async def refuse_route(request: Request, error: Unrouted) -> JSONResponse:
        known = {
            404: f"There is nothing at {request.url.path}: /openapi.json lists what there is.",
            405: f"{request.method} is not for {request.url.path}: /openapi.json lists what is.",
        }
        return JSONResponse({"detail": known.get(error.status_code, error.detail)}, error.status_code, error.headers)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/page.js", include_in_schema=False)
    async def run() -> Response:
        return Response(script, media_type="text/javascript")

    @app.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)  # browsers ask for one

    @app.get("/gallery")
    async def describe_gallery() -> answers.Gallery:
        """What the gallery is now."""
        return await ask(About())

    @app.get("/search")
    async def search_by_item(
        item: Annotated[int, Query(ge=0, lt=2**63, description="the number of a picture of the gallery")],
        k: Neighbours = 10,
        where: Where = [],  # noqa: B006 - FastAPI copies it
    ) -> answers.Found:
        """The neighbours of a picture of the gallery, without itself."""
        return await ask(Search(item, k, _conditions(where)))

    @app.post("/search")
    async def search_by_picture(picture: Picture, k: Neighbours = 10, where: Where = []) -> answers.Found:  # noqa: B006
        """The neighbours of a picture, and its label, or that it is unknown."""
        return await ask(Search(await picture.read(), k, _conditions(where)))

    @app.post("/embed")
    async def embed(picture: Picture) -> answers.Embedding:
        """The vector that the gallery's model makes of a picture."""
        return await ask(Embed(await picture.read()))

    @app.get("/items")
    async def list_items(
        after: Annotated[int, Query(ge=-1, lt=2**63, description="the id that they follow")] = -1,
        count: Annotated[int, Query(ge=1, le=1000)] = 24,
        where: Where = [],  # noqa: B006
    ) -> answers.Rows:
        """Pictures of the gallery, in the order of their ids."""
        return await ask(Browse(after, count, _conditions(where)))

    @app.get("/items/{id}")
    async def describe_item(number: Id) -> answers.Row:
        """What is known of a picture."""
        return await ask(Item(number))

    @app.get("/items/{id}/picture", response_class=Response)
    async def picture(number: Id) -> Response:
        """The picture as its file has it."""
        kind, content = await ask(Original(number))
        return Response(content, media_type=kind, headers=_PRIVATE)

    @app.get("/items/{id}/thumbnail", response_class=Response)
    async def thumbnail(number: Id) -> Response:
        """A small JPEG of the picture."""
        kind, content = await ask(Thumbnail(number))
        return Response(content, media_type=kind, headers=_PRIVATE)

    return app


def _sentence(problem: Mapping[str, Any]) -> str:
    """What is wrong with a parameter, of which FastAPI makes a list.

    >>> _sentence({"loc": ("query", "k"), "input": "0", "msg": "Input should be greater than or equal to 1"})
    "k is '0', but should be greater than or equal to 1."
    >>> _sentence({"loc": ("query", "item"), "input": None, "msg": "Field required"})
    'item is missing: the request must have it.'
    """
    place, name = problem["loc"][0], next(part for part in reversed(problem["loc"]) if isinstance(part, str))
    if place == "body":
        return "picture is missing: send a file by this name, as multipart/form-data."
    if problem["input"] is None:
        return f"{name} is missing: the request must have it."
    return f"{name} is {str(problem['input'])[:100]!r}, but {problem['msg'].removeprefix('Input ').rstrip('.')}."


def _conditions(where: list[str]) -> Conditions:
    try:
        return tuple((name, tuple(values)) for name, values in read_conditions(where).items())
    except UserError as error:
        raise HTTPException(422, str(error)) from error
