from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer


def test_a_written_record_is_there_after_sigkill_and_a_new_start(redis_server: RedisServer) -> None:
    with redis_server.client(decode_responses=True) as client:
        client.set("kept", "9007199254740993")
        redis_server.wait_until_written()
        redis_server.restart()
        assert client.get("kept") == "9007199254740993"
