"""Warns of a fraction of a GPU in a job of several pods, which wait for one another in collective operations.

Each node plans the turns of its GPUs on its own, so the turns of two nodes begin at different moments. A collective
operation goes on only while all pods have their turn (docs/vcuda.md). A job of several pods is recognised by one of:

- the variables of PyTorch's process groups (https://docs.pytorch.org/docs/stable/distributed.html) and of NCCL
  (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html);
- a launcher that is given several nodes: torchrun (https://docs.pytorch.org/docs/stable/elastic/run.html), or Open
  MPI's mpirun (https://docs.open-mpi.org/en/main/launching-apps/scheduling.html);
- a custom resource that makes several pods which work together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fairgpu.container_parser import ContainerReading
from fairgpu.faults import field_path, show
from fairgpu.json_values import mapping
from fairgpu.pod import PodReading
from webhook.admission.undecoded import decoded, may_have
from webhook.admission.verdict import objects

Path = tuple[str | int, ...]

WHOLE: Final = 100
"""A whole GPU, in percent."""
MAX_NAMED: Final = 16
"""The most warnings of this kind for one pod."""

_VARIABLES: Final = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
_NCCL: Final = "NCCL_"
_LAUNCHERS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_MPI: Final = ("mpirun", "mpiexec")
_NODES: Final = ("--nnodes", "--nnode")
_HOSTS: Final = ("-H", "-host", "--host")
_HOST_FILES: Final = ("-hostfile", "--hostfile", "-machinefile", "--machinefile")
_COMMAND_LINE: Final = ("command", "args")
_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[?::1\]?)(:.*)?")
_BETWEEN_WORDS: Final = re.compile(r"[\s;&|()\"']+")
_IN_VARIABLES: Final = ('"WORLD_SIZE"', '"RANK"', '"MASTER_ADDR"', '"NCCL_')
_IN_COMMANDS: Final = ("torch", "mpi")


class Sign:
    """A field of a manifest which shows that the pod is one of several that work together.

    Attributes:
        path: the field path.
        said: the part of a warning that describes the field, such as `torchrun starts a job on several nodes`.
    """

    def __init__(self, path: str, said: str) -> None:
        self.path: Final = path
        self.said: Final = said


def collective_warnings(pod: dict[str, Any], reading: PodReading, together: Sign | None = None) -> tuple[str, ...]:
    """Returns a warning for each container with a fraction of a GPU that works with other pods, at most MAX_NAMED.

    The collective operations of such a container go on only while all pods have their turn.

    Args:
        pod: a pod or a pod template, as JSON.
        reading: the GPU requests that were read from the pod.
        together: the field of the pods' workload, such as a JobSet, which shows that several pods work together. If it
            is None, the environment and the command of each container decide.
    """
    warnings = []
    for container in reading.all_containers:
        if _is_fraction(container):
            sign = together or _sign(_found(pod, container), container.path)
            if sign is not None:
                warnings.append(_warning(sign, container))
            if len(warnings) >= MAX_NAMED:
                break
    return tuple(warnings)


def _is_fraction(container: ContainerReading) -> bool:
    request = container.request
    return request is not None and request.core_percent < WHOLE * request.gpus


def _found(pod: dict[str, Any], reading: ContainerReading) -> dict[str, Any]:
    return mapping(mapping(pod.get("spec"))[str(reading.path[-2])][reading.index])


def _warning(sign: Sign, container: ContainerReading) -> str:
    assert container.request is not None  # noqa: S101 - a fraction is a request
    share = container.request.core_percent // container.request.gpus
    amount = f"{share} percent of a GPU" if share else "best effort"
    whole = WHOLE * container.request.gpus
    return (
        f"{sign.path}: {sign.said}, and the container {show(container.name)} asks for {amount}: pods that wait for one "
        "another on the GPU go on only while all have their turn, and the turns of two nodes begin at different "
        f"moments; ask for whole GPUs, fairgpu.io/gpu-core: {whole}, or keep the job in one pod"
    )


def _sign(container: dict[str, Any], path: Path) -> Sign | None:
    """Returns the field which shows that a container works with other pods: a variable, else the command.

    Returns None without such a field, or if another field says that the container works alone.

    Args:
        container: the container, as JSON.
        path: the container's field path.
    """
    variables = container.get("env")
    listed = _named(decoded(variables)) if may_have(variables, _IN_VARIABLES) else []
    field, words = _command(container)
    if not listed and not words:
        return None
    if _is_alone({variable["name"]: variable.get("value") for _, variable in listed}) or _starts_one_node(words):
        return None
    for index, variable in listed:
        name, value = variable["name"], variable.get("value")
        if _names_other_processes(name, value):
            given = name if value is None else f"{name}={show(value)}"
            return Sign(field_path(*path, "env", index), f"{given} is of a job of several processes")
    launcher = _starts_several_nodes(words)
    return Sign(field_path(*path, field), f"{launcher} starts a job on several nodes") if launcher else None


def _named(variables: Any) -> list[tuple[int, dict[str, Any]]]:
    """Returns the variables of an environment that have a name, each with its index in the list."""
    return [(index, variable) for index, variable in objects(variables) if isinstance(variable.get("name"), str)]


def _is_alone(variables: Mapping[Any, Any]) -> bool:
    """Whether PyTorch's variables state that the job has one process, or that all of its processes are in this pod.

    Args:
        variables: the values of the container's environment variables, keyed by name.
    """
    address = variables.get("MASTER_ADDR")
    return variables.get("WORLD_SIZE") in ("0", "1") or (
        isinstance(address, str) and _LOOPBACK.fullmatch(address) is not None
    )


def _names_other_processes(name: str, value: Any) -> bool:
    if name.startswith(_NCCL):
        return True
    if name not in _VARIABLES or value == "":
        return False
    # Programs of other kinds have a RANK, too; that of a process is a number, or refers to another variable.
    return name != "RANK" or value is None or (isinstance(value, str) and (value.isdecimal() or "$" in value))


def _command(container: dict[str, Any]) -> tuple[str, list[str]]:
    """Returns which field of a container starts a launcher, such as torchrun, and the words of its command line.

    The field is `command` or `args`. The words are those of both fields. Without a launcher, the name of the field and
    the list of words are empty.
    """
    for field in _COMMAND_LINE:
        given = container.get(field)
        if may_have(given, _IN_COMMANDS) and _launches(decoded(given)):
            lines = [decoded(container.get(part)) for part in _COMMAND_LINE]
            texts = [text for line in lines if isinstance(line, list) for text in line if isinstance(text, str)]
            return field, [word for text in texts for word in _BETWEEN_WORDS.split(text)]
    return "", []


def _launches(given: Any) -> bool:
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    return any(name in text for text in texts for name in (*_LAUNCHERS, *_MPI))


def _launcher(words: list[str], names: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the first program of a command line that has one of the given names, and the words that follow it.

    The program is returned without its folder. Both are empty if no word is such a program.

    Args:
        words: the words of the command line.
        names: the names of the programs to look for.
    """
    for index, word in enumerate(words):
        if word.rpartition("/")[2] in names:
            return word.rpartition("/")[2], words[index + 1 :]
    return "", []


def _option(words: list[str], names: tuple[str, ...]) -> str | None:
    """Returns the value of an option, written as `--name value` or `--name=value`; None if the option is not given.

    The value is empty if the option is the last word.

    Args:
        words: the words that follow the program in its command line.
        names: the spellings of the option.
    """
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(words[index + 1 : index + 2])
    return None


def _most_nodes(words: list[str]) -> str | None:
    """Returns the most nodes that torchrun's option --nnodes allows, such as `4` for `1:4`; None without the option."""
    given = _option(words, _NODES)
    return None if given is None else given.rpartition(":")[2]


def _starts_one_node(words: list[str]) -> bool:
    launcher, after = _launcher(words, _LAUNCHERS)
    return bool(launcher) and ("--standalone" in after or _most_nodes(after) == "1")


def _starts_several_nodes(words: list[str]) -> str:
    """Returns the name of the launcher in a command line that starts a job on several nodes; empty if none does."""
    launcher, after = _launcher(words, _LAUNCHERS)
    if launcher and _most_nodes(after) not in (None, "", "0", "1"):
        return launcher
    launcher, after = _launcher(words, _MPI)
    if not launcher:
        return ""
    hosts = (_option(after, _HOSTS) or "").split(",")
    others = [host for host in hosts if host and not _LOOPBACK.fullmatch(host)]
    return launcher if len(others) > 1 or _option(after, _HOST_FILES) is not None else ""
