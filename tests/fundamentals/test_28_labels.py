"""Lesson 28. Labels.

What an application calls its instances by, to find them again: `invoke(labels={…})`, `list_instances(labels={…})`.
"""

from __future__ import annotations

import pytest

from memable import App, Context, Status
from tests.fundamentals.starting import Start


def shop() -> App:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context, amount: int) -> int:
        if amount > 100:
            await ctx.suspend("approval")
        return amount

    return app


@pytest.mark.spec("invoke-labels", "get-metadata")
async def test_labels_are_part_of_what_is_known_of_an_instance(start: Start) -> None:
    async with start(shop()) as engine:
        instance = await engine.invoke("order", 7, labels={"tenant": "acme", "region": "eu"})
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.labels == {"tenant": "acme", "region": "eu"}


@pytest.mark.spec("list-labels")
async def test_instances_are_found_by_their_labels(start: Start) -> None:
    async with start(shop()) as engine:
        for number, (tenant, region) in enumerate([("acme", "eu"), ("acme", "us"), ("zeta", "eu")]):
            await engine.invoke("order", 7, id=str(number), labels={"tenant": tenant, "region": region})
        await engine.invoke("order", 7, id="without")

        async def found(**labels: str) -> list[str]:
            return [each.instance_id for each in (await engine.list_instances("order", labels=labels)).items]

        assert await found(tenant="acme") == ["1", "0"]
        assert await found(region="eu") == ["2", "0"]
        assert await found(region="eu", tenant="acme") == ["0"]
        assert await found(tenant="nobody") == []
        assert await found() == ["without", "2", "1", "0"]


@pytest.mark.spec("list-labels")
async def test_of_one_status(start: Start) -> None:
    async with start(shop()) as engine:
        for number, amount in enumerate([7, 700, 7, 700]):
            tenant = "acme" if number < 3 else "zeta"
            await (await engine.invoke("order", amount, id=str(number), labels={"tenant": tenant})).wait()
        page = await engine.list_instances(labels={"tenant": "acme"}, status=Status.SUSPENDED)
        assert [each.instance_id for each in page.items] == ["1"]


async def test_many_may_get_the_same_labels(start: Start) -> None:
    async with start(shop()) as engine:
        await engine.invoke_many("order", [1, 2, 3], labels={"batch": "monday"})
        await engine.invoke_many("order", [4, 5])
        assert len((await engine.list_instances(labels={"batch": "monday"})).items) == 3


async def test_labels_are_no_part_of_what_an_instance_is(start: Start) -> None:
    """The same id and input is the same instance, and keeps the labels that it has."""
    async with start(shop()) as engine:
        await engine.invoke("order", 7, id="42", labels={"tenant": "acme"})
        again = await engine.invoke("order", 7, id="42", labels={"tenant": "zeta"})
        assert not again.created
        metadata = await again.metadata()
        assert metadata is not None
        assert metadata.labels == {"tenant": "acme"}
        assert (await engine.list_instances(labels={"tenant": "zeta"})).items == []


async def test_a_resumed_instance_is_found_and_a_deleted_one_is_not(start: Start) -> None:
    async with start(shop()) as engine:
        instance = await engine.invoke("order", 7, id="42", labels={"tenant": "acme"})
        await instance.result()
        await instance.resume()
        await instance.result()
        assert len((await engine.list_instances(labels={"tenant": "acme"})).items) == 1
        await engine.delete("order", "42")
        assert (await engine.list_instances(labels={"tenant": "acme"})).items == []
