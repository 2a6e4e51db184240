"""A Redis Cluster behind the calls of a single Redis: commands by key, and pipelines whose keys lie in several slots.

redis-py's own pipelines for a cluster refuse EVALSHA, and repeat failed commands one by one: a thousand calls to a node
that hangs would wait a thousand times. A pipeline of this module makes one round trip to each node. It sends commands
again only if a node did not answer, or if a slot has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.commands import CoreCommands
from redis.exceptions import AskError, RedisClusterException, TryAgainError

Command = tuple[tuple[Any, ...], dict[str, Any]]
"""A command with its arguments, and options for reading its answer."""

_SCRIPTS = ("EVAL", "EVALSHA")


class ClusterStore(CoreCommands):
    """The client of a Redis Cluster, in place of redis.Redis. Safe for several threads.

    It connects when it gets its first command.
    """

    _event_dispatcher: Any = None  # CoreCommands declares it; no command on a key uses it

    def __init__(self, connect: Callable[[], RedisCluster], answered: Callable[[], None] = lambda: None) -> None:
        """Makes a client that runs `connect` at its first command, and `answered` after each answer and failure."""
        self._connect = connect
        self._answered = answered
        self._connecting = Lock()
        """Guards the creation of redis-py's client, so that only one is made; it asks the cluster for its nodes."""
        self._cluster: RedisCluster | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends one command to the node of the cluster that holds its key, and returns the node's answer.

        Args:
            args: the command and its arguments.
            options: redis-py's options for reading the answer.

        Raises:
            redis.RedisError: the cluster does not answer, or refuses.
        """
        with self._reached() as cluster:
            return cluster.execute_command(*args, **options)

    def pipeline(self, transaction: bool = False, shard_hint: str | None = None) -> Pipeline:  # noqa: ARG002, FBT001, FBT002 - redis.Redis has these
        """Returns a pipeline for commands on any keys. The commands on keys of one node are sent in their order.

        Args:
            transaction: not used; redis.Redis has it.
            shard_hint: not used; redis.Redis has it.
        """
        return Pipeline(self.send)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands to the nodes of the cluster; returns, for each, its reply or its ResponseError.

        If a node does not answer, all commands are sent once more, so that a command may be done twice.

        Args:
            commands: each command with its arguments, and redis-py's options for reading its answer.

        Raises:
            redis.RedisError: a node does not answer; commands of other nodes may have been done.
        """
        answers: list[Any] = [None] * len(commands)
        everything = list(range(len(commands)))
        with self._reached() as cluster:
            try:
                self._send_each(cluster, commands, everything, answers)
            except (redis.ConnectionError, redis.TimeoutError):
                # A node was restarted, or replaced by one of its replicas: the slots are read anew.
                cluster.nodes_manager.initialize()
                self._send_each(cluster, commands, everything, answers)
            moved = [index for index in everything if isinstance(answers[index], AskError | TryAgainError)]
            if moved:
                cluster.nodes_manager.initialize()
                self._send_each(cluster, commands, moved, answers)
        for index in moved:
            if isinstance(answers[index], AskError | TryAgainError):  # its slot is on the way between two nodes
                answers[index] = self._send_alone(commands[index])
        return answers

    def primaries(self) -> list[tuple[str, redis.Redis]]:
        """Returns the address and a client of each node of the cluster that takes writes, sorted by address.

        Raises:
            redis.RedisError: the cluster does not answer.
        """
        with self._reached() as cluster:
            nodes: list[ClusterNode] = sorted(cluster.get_primaries(), key=lambda node: node.name)
            return [(node.name, cluster.get_redis_connection(node)) for node in nodes]

    def address_of(self, key: str) -> str:
        """Returns the address of the cluster's node that takes writes to a key.

        Raises:
            redis.RedisError: the cluster does not answer.
        """
        with self._reached() as cluster:
            return str(cluster.get_node_from_key(key).name)

    def look_again(self) -> None:
        """Asks the cluster again which nodes it has, and which slots each of them holds.

        Raises:
            redis.RedisError: no node answers.
        """
        with self._reached() as cluster:
            cluster.nodes_manager.initialize()

    def close(self) -> None:
        """Closes all connections to the cluster."""
        with self._connecting:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _send_alone(self, command: Command) -> Any:
        arguments, options = command
        try:
            return self.execute_command(*arguments, **options)
        except redis.ResponseError as error:
            return error

    @contextmanager
    def _reached(self) -> Iterator[RedisCluster]:
        try:
            with self._connecting:
                cluster = self._cluster = self._cluster or self._connect()
            yield cluster
        except RedisClusterException as error:  # not a subclass of RedisError
            raise redis.ConnectionError(str(error)) from error
        finally:
            self._answered()

    def _send_each(
        self, cluster: RedisCluster, commands: Sequence[Command], chosen: Sequence[int], answers: list[Any]
    ) -> None:
        """Sends the commands at the `chosen` indexes to the nodes that hold their keys, in one round trip to each node.

        Each answer is stored in `answers`, at its command's index.
        """
        shares: dict[str, tuple[ClusterNode, list[int]]] = {}
        for index in chosen:
            node = cluster.get_node_from_key(_key(commands[index][0]))
            shares.setdefault(node.name, (node, []))[1].append(index)
        for node, share in shares.values():
            pipeline = cluster.get_redis_connection(node).pipeline(transaction=False)
            for index in share:
                arguments, options = commands[index]
                pipeline.execute_command(*arguments, **options)
            try:
                answered = pipeline.execute(raise_on_error=False)
            finally:
                self._answered()
            for index, answer in zip(share, answered, strict=True):
                answers[index] = answer


class Pipeline(CoreCommands):
    """A batch of commands for a Redis Cluster that is sent at once."""

    _event_dispatcher: Any = None

    def __init__(self, send: Callable[[Sequence[Command]], list[Any]]) -> None:
        self._send = send
        self._commands: list[Command] = []

    def execute_command(self, *args: Any, **options: Any) -> Self:
        """Adds a command on one key to the pipeline, and returns the pipeline.

        Args:
            args: the command and its arguments.
            options: redis-py's options for reading the answer.
        """
        self._commands.append((args, options))
        return self

    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - redis.Redis has it so
        """Sends the collected commands, and returns the answers in their order.

        Args:
            raise_on_error: whether to raise the first error among the answers; if not, errors are returned as answers.

        Raises:
            redis.RedisError: a node does not answer, or refused a command and `raise_on_error` is set.
        """
        commands, self._commands = self._commands, []
        answers = self._send(commands) if commands else []
        refused = next((answer for answer in answers if isinstance(answer, redis.RedisError)), None)
        if refused is not None and raise_on_error:
            raise refused
        return answers


def _key(arguments: tuple[Any, ...]) -> Any:
    """Returns the key that decides to which node a command goes; of a script, the first of its keys.

    All keys of a script have the same hash tag, so they lie on one node.

    Args:
        arguments: the command and its arguments.
    """
    return arguments[3] if arguments[0] in _SCRIPTS else arguments[1]
