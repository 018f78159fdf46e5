"""Making kafka-python's clients so that a failed attempt leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kafka.net.compat import KafkaNetClient

if TYPE_CHECKING:
    from collections.abc import Callable

ClientT = TypeVar("ClientT")


def connect(client: Callable[..., ClientT], **options: Any) -> ClientT:
    """Make a producer, consumer or admin client, which connects at once.

    kafka-python leaves the thread and the sockets of a client behind whose first connection fails; while a
    cluster is away for hours that would be many.
    """
    made: list[Any] = []

    def network(**configs: Any) -> Any:
        made.append(KafkaNetClient(**configs))
        return made[-1]

    try:
        return client(kafka_client=network, **options)
    except BaseException:
        for part in made:
            part.close()
            network_loop = part._manager._net  # noqa: SLF001  as KafkaAdminClient.close does
            network_loop.stop()
            network_loop.close()  # its own sockets and selector
        raise
