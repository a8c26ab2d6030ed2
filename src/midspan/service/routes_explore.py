"""Counts and facets, stored vectors, and near-identical items over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from midspan.service import explore
from midspan.service.answers import answer
from midspan.service.bodies import read_json
from midspan.service.context import service_of, stored_id
from midspan.service.errors import NotFound
from midspan.service.jobs import JobRun
from midspan.service.requests import DuplicatesSearch, FacetsSearch
from midspan.service.routes_items import get_item
from midspan.service.routes_jobs import as_job
from midspan.service.search_service import SearchService

BINARY = "application/octet-stream"
Name = Annotated[str | None, Query(max_length=512, description="Fingerprint or name of a space.")]


async def count_facets(request: Request) -> Response:
    """How many items match a filter, and how many have which value of some payload fields."""
    service = service_of(request)
    body = await read_json(request, FacetsSearch, executor=service.reading)
    result = await service.scanning.run(
        explore.facets, service.gallery, body.fields, body.filter, limit=body.limit
    )
    return answer(asdict(result))


async def find_duplicates(request: Request) -> Response:
    """Items whose vectors are nearly the same, in groups."""
    service = service_of(request)
    body = await read_json(request, DuplicatesSearch, executor=service.admin)

    def work(job: JobRun) -> dict[str, Any]:
        return asdict(
            explore.duplicates(
                service.gallery, threshold=body.threshold, filter=body.filter, limit=body.limit
            )
        )

    return await as_job(request, "find duplicates", work)


async def get_vector(request: Request, id: str, space: Name = None) -> Response:
    """The stored vector of an item; with Accept: application/octet-stream as float32."""
    service = service_of(request)
    stored = stored_id(request, id)
    fingerprint, vector = await service.reading.run(_vector, service, stored, space)
    if BINARY in request.headers.get("accept", ""):
        content = vector.astype("<f4").tobytes()
        return Response(content, media_type=BINARY, headers={"X-Space": fingerprint})
    return answer({"id": id, "space": fingerprint, "vector": vector.tolist()})


async def get_item_vector(request: Request, id: str, space: Name = None) -> Response:
    """The stored vector of an item, as /v1/vectors; an item whose id ends so is shown itself."""
    service, whole = service_of(request), f"{id}/vector"
    if await service.reading.run(service.gallery.get_many, [stored_id(request, whole)]):
        return await get_item(request, whole)
    return await get_vector(request, id, space)


def _vector(service: SearchService, id: str, space: str | None) -> tuple[str, np.ndarray[Any, Any]]:
    """Of the space asked for, or of the one that answers for the item."""
    state, item = service.gallery.state, service.gallery.get(id)
    if space is not None:
        name = service.space_called(space, state).fingerprint
    else:
        name = next((one for one in state.live if one in item.spaces), state.live[0])
    embeddings = service.gallery.vectors([id], space=name)
    if not len(embeddings):
        raise NotFound(f"{id!r:.80} has no vector in {state.spaces[name]}")
    return name, embeddings.vectors[0]
