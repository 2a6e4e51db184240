"""An account as the store holds it: what it has spent, and how many of its sessions are open."""

from __future__ import annotations

from tests.support.servers.redis_server import RedisServer
from timekeeper.ledger.reading import StoredAccount, load_accounts


def spent(server: RedisServer, account: str) -> int:
    """Returns the uGPU-s that the account has spent in its two latest periods; 0 if the store does not know it."""
    return sum(totals.total for held in _load(server, account) for totals in held.totals.values())


def open_sessions(server: RedisServer, account: str) -> int:
    """Returns how many sessions the account holds open. The index of all accounts' open sessions may lag behind."""
    return sum(len(held.sessions) for held in _load(server, account))


def _load(server: RedisServer, account: str) -> list[StoredAccount]:
    with server.client() as client:
        return load_accounts(client, [account])
