"""The routes of the server: the page, and the JSON interface that the page uses."""

import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from proxemic.conditions import read_conditions
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.image_formats import ENDINGS, FORMATS_TEXT
from proxemic.pages import environment
from proxemic.retrieval.curation.doubts import Doubt
from proxemic.serve import answers
from proxemic.serve.access import Access
from proxemic.serve.engine import Conditions, Engine
from proxemic.serve.guard import POLICY, Guard
from proxemic.serve.limits import Limits, Refused
from proxemic.serve.reviewing import add_review

with optional_dependency("serve"):
    import python_multipart  # noqa: F401 - which FastAPI needs for uploads
    from fastapi import Depends, FastAPI, File, Form, Query, Request, Response, UploadFile
    from fastapi import Path as InPath
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from fastapi.security import HTTPBearer
    from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent
_PRIVATE = {"Cache-Control": "private, max-age=300"}

Where = Annotated[
    list[str], Query(max_length=32, description="COLUMN=VALUE, as label=shoe; values of one column are alternatives")
]
Neighbours = Annotated[int, Query(ge=1, le=1000, description="neighbours")]
Id = Annotated[int, InPath(alias="id", ge=0, lt=2**63, description="the photo's number in the gallery")]
Picture = Annotated[UploadFile, File(description=FORMATS_TEXT)]
Text = Annotated[str, Form(max_length=1000, description="what photos show, in words")]


def make_app(engine: Engine, access: Access, limits: Limits, doubts: Sequence[Doubt] | None = None) -> Guard:
    """Make an application that serves a gallery behind a guard, and closes the gallery when the application ends.

    If `doubts` is a list, even an empty one, the application also serves their review.
    """
    title = engine.about()["name"]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        engine.close()

    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": answers.Problem} for status in (401, 404, 408, 413, 415, 421, 422, 503, 504)
    }
    app = FastAPI(
        title=f"proxemic serve {title}",
        version=version("proxemic"),
        lifespan=lifespan,
        responses=problems,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if access.token is not None else [],
        docs_url=None,  # pages that load their scripts from elsewhere
        redoc_url=None,
    )
    pages = {"": ("page.html", f"Search {title}")}
    if doubts is not None:
        pages["review"] = ("review.html", f"Review {title}")
        add_review(app, engine, doubts)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameters(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _sentence(error.errors()[0])}, 422)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        unrouted = {
            404: f"There is nothing at {request.url.path}: /openapi.json lists all paths.",
            405: f"{request.url.path} does not take {request.method}: /openapi.json lists its methods.",
        }
        sentence = error.detail if isinstance(error, Refused) else unrouted.get(error.status_code, error.detail)
        return JSONResponse({"detail": sentence}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> JSONResponse:
        traceback.print_exception(error)
        return JSONResponse({"detail": "The answer failed; the server's terminal says why."}, 500)

    def add_file(path: str, content: str, kind: str) -> None:
        @app.get(path, response_class=Response, include_in_schema=False)
        async def show() -> Response:
            return Response(content, media_type=kind)

    for path, (name, heading) in pages.items():
        shown = (
            environment(_FOLDER)
            .get_template(name)
            .render(
                title=heading,
                scripts=[],
                bytes=limits.bytes,
                takes_texts=engine.takes_texts,
                endings=",".join(ENDINGS),
                policy=POLICY.replace("frame-ancestors 'none'; ", ""),  # which only a header may have
                has_review=doubts is not None,
            )
        )
        add_file(f"/{path}", shown, "text/html")
    for name in ("page.js", "review.js", "shared.js"):
        add_file(f"/{name}", (_FOLDER / name).read_text(encoding="utf-8"), "text/javascript")

    @app.get("/favicon.ico", include_in_schema=False)
    async def no_icon() -> Response:
        return Response(status_code=204)  # browsers ask for one

    @app.get("/health")
    async def check_health() -> answers.Health:
        """Answer if the server can decode, embed and read; needs no token."""
        await engine.check_health()
        return answers.Health(status="ok")

    @app.get("/gallery")
    async def describe_gallery() -> answers.Gallery:
        """Describe the gallery as it is now."""
        return await engine.show(engine.about)

    @app.get("/search")
    async def search_by_item(
        item: Annotated[int, Query(ge=0, lt=2**63, description="the number of a photo of the gallery")],
        k: Neighbours = 10,
        where: Where = [],  # noqa: B006 - FastAPI copies it
    ) -> answers.Found:
        """Return the neighbours of an image of the gallery, without itself."""
        return await engine.show(engine.near, item, k, _conditions(where))

    @app.post("/search")
    async def search_by_picture(picture: Picture, k: Neighbours = 10, where: Where = []) -> answers.Found:  # noqa: B006
        """Return the neighbours of an image, and its label unless it is unknown."""
        return await engine.query(await picture.read(), k, _conditions(where))

    @app.post("/search/text")
    async def search_by_text(text: Text, k: Neighbours = 10, where: Where = []) -> answers.Found:  # noqa: B006
        """Return the images nearest to a text, if the gallery's model has a text tower."""
        return await engine.query(text, k, _conditions(where))

    @app.post("/embed")
    async def embed(picture: Picture) -> answers.Embedding:
        """Return the vector of an image by the gallery's model."""
        return await engine.query(await picture.read())

    @app.get("/items")
    async def list_items(
        after: Annotated[int, Query(ge=-1, lt=2**63, description="the id that they follow")] = -1,
        count: Annotated[int, Query(ge=1, le=1000)] = 24,
        where: Where = [],  # noqa: B006
    ) -> answers.Rows:
        """List images of the gallery, in the order of their ids."""
        return await engine.show(engine.browse, after, count, _conditions(where))

    @app.get("/items/{id}")
    async def describe_item(number: Id) -> answers.Row:
        """Return the metadata of an image."""
        return await engine.show(engine.item, number)

    @app.get("/items/{id}/picture", response_class=Response)
    async def picture(number: Id) -> Response:
        """Return the image as its file has it."""
        kind, content = await engine.show(engine.original, number)
        return Response(content, media_type=kind, headers=_PRIVATE)

    @app.get("/items/{id}/thumbnail", response_class=Response)
    async def thumbnail(number: Id) -> Response:
        """Return a small JPEG of the image."""
        kind, content = await engine.show(engine.thumbnail, number)
        return Response(content, media_type=kind, headers=_PRIVATE)

    return Guard(app, access, limits)


def _sentence(problem: Mapping[str, Any]) -> str:
    """Say in one sentence what is wrong with a parameter.

    >>> _sentence({"loc": ("query", "k"), "input": "0", "msg": "Input should be greater than or equal to 1"})
    "k is '0', but should be greater than or equal to 1."
    >>> _sentence({"loc": ("query", "item"), "input": None, "msg": "Field required"})
    'item is missing: the request must have it.'
    """
    place, name = problem["loc"][0], next(part for part in reversed(problem["loc"]) if isinstance(part, str))
    if (place, name) == ("body", "picture"):
        return "picture is missing: send a file by this name, as multipart/form-data."
    if problem["input"] is None:
        return f"{name} is missing: the request must have it."
    return f"{name} is {str(problem['input'])[:100]!r}, but {problem['msg'].partition(' ')[2].rstrip('.')}."


def _conditions(where: list[str]) -> Conditions:
    try:
        return read_conditions(where)
    except UserError as error:
        raise Refused(422, str(error)) from error
