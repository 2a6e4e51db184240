"""The sections of the demonstration, in order; each does one thing, shows it, and waits for its result.

If the result does not come, the section raises StepError.
"""

from __future__ import annotations

import subprocess

from demo.admission import Admission, Admitted
from demo.children import wait_until
from demo.environment import Environment, manifest, manifests
from demo.folder import (
    ALLOWANCE_GPU_SECONDS,
    BUDGET,
    GRACE_GPU_SECONDS,
    GRANT_GPU_SECONDS,
    HELD_BUDGET,
    HELD_GRANT_GPU_SECONDS,
    HELD_NAMESPACE,
    NAMESPACE,
    gpu_hours,
)
from demo.redis_server import start_redis
from demo.running import cost, end_sidecars, sidecar_of, work
from demo.screen import UNIT
from demo.steps import COMMAND_LIMIT_SECONDS, STEP_LIMIT_SECONDS, accepted, meant, program, python_module, require, said
from fairgpu import names
from fairgpu.states import BudgetState

START_LIMIT_SECONDS = 90.0


def start_services(environment: Environment) -> None:
    """Prints a heading, and starts the services as `serve` does."""
    environment.screen.section("The services start")
    serve(environment)


def serve(environment: Environment) -> None:
    """Starts Redis, the timekeeper and the webhook, and waits until they answer; builds the sidecar's archive.

    It prints no heading.
    """
    folder, children = environment.folder, environment.children
    folder.prepare(start_redis(children, folder.root))
    settings = ["--standalone", str(folder.root)]
    children.start("timekeeper-serve", [program("fairgpu"), "timekeeper", "serve", *settings], {})
    children.start("timekeeper-jobs", [program("fairgpu"), "timekeeper", "jobs", *settings], {})
    children.start("webhook", [program("fairgpu"), "webhook", "serve", *settings], {})
    archive = python_module("sidecar.archive", str(folder.sidecar))
    subprocess.run(archive, check=True, timeout=COMMAND_LIMIT_SECONDS)  # noqa: S603 - our own command, no shell
    wait_until("the timekeeper serves", environment.timekeeper_ready, children, START_LIMIT_SECONDS)
    wait_until("the webhook serves", folder.webhook_ca.exists, children, START_LIMIT_SECONDS)
    environment.admission = Admission(folder.webhook_port, folder.webhook_ca.read_text())
    wait_until("the webhook knows the budgets", environment.admission.ready, children, START_LIMIT_SECONDS)
    reading = environment.reading()
    require(reading.state is BudgetState.OPEN and reading.spent == 0, f"a fresh budget is {reading}")
    environment.screen.done("Redis, timekeeper (REST and jobs) and webhook are up, each with certificates of its own")


def admit_dialects(environment: Environment) -> None:
    """Sends one pod of each dialect through admission; checks and shows the results."""
    environment.screen.section("Seven ways to ask for a piece of a GPU, one meaning")
    rows = []
    for dialect, document in manifests():
        admitted = environment.admission.create(NAMESPACE, document)
        pod = accepted(admitted, names.IN_BUDGET_CLASS)
        require(pod["metadata"]["annotations"][names.SOURCE_DIALECT] == dialect, f"{dialect} was not recognised")
        sidecar_of(pod)
        environment.admitted.append(pod)
        rows.append((dialect, pod["metadata"]["name"], said(document), meant(pod)))
    environment.screen.table(("dialect", "pod", "the manifest says", "FairGPU understands"), rows)
    environment.screen.done(
        f"{len(rows)} pods admitted over TLS: one form, a sidecar each, class [green]{names.IN_BUDGET_CLASS}[/]"
    )


def spend(environment: Environment) -> None:
    """Binds and runs the admitted pods until their budget and its grace are spent; admits another pod during grace."""
    environment.screen.section("What is held is paid for")
    for pod in environment.admitted:
        bound = environment.cluster.bind(pod)
        environment.bound.append(bound)
        work(environment.gpus, bound, environment.folder.usage(bound))
    environment.screen.say(
        f"Budget {BUDGET}: {ALLOWANCE_GPU_SECONDS} GPU-seconds, and {GRACE_GPU_SECONDS} more of grace. "
        "Solid is what the programs used, shaded what their pods hold, and holding is what costs."
    )
    count = len(environment.bound)
    wait_until(
        "every pod is on the meter", lambda: environment.sessions() == count, environment.children, STEP_LIMIT_SECONDS
    )
    for pod in environment.bound:
        environment.start_sidecar(pod)
    seen = environment.watch(BudgetState.GRACE)
    require(seen.spent >= seen.available, f"in grace with {seen.spent} of {seen.available} spent")
    warned = environment.next_pod("train-resnet-2", names.IN_BUDGET_CLASS, BudgetState.GRACE)
    require(bool(warned.warnings), "the pod got no warning in grace")
    show_created(environment, warned)
    environment.screen.done("the money is spent, and grace begins: the next pod is admitted as before, with a warning")
    environment.command("sessions", "-n", NAMESPACE)
    seen = environment.watch(BudgetState.OVER)
    require(seen.spent >= seen.available + GRACE_GPU_SECONDS * UNIT, f"over with {seen.spent} spent")
    # A slow machine may still be starting sidecars when grace ends.
    reported = lambda: environment.reading().used > 0  # noqa: E731 - read once, here
    wait_until("the sidecars report", reported, environment.children, STEP_LIMIT_SECONDS)
    seen = environment.reading()
    require(0 < seen.used < seen.spent, f"used {seen.used} is not between nothing and the {seen.spent} reserved")
    environment.screen.done(f"{count} sidecars report what is used; grace is used up: over. Nothing was killed")


def next_pod_yields(environment: Environment) -> None:
    """Shows that a new pod of a team over budget gets the lower priority class."""
    environment.screen.section("The next pod of the team yields to teams within budget")
    late = environment.next_pod("train-resnet-3", names.OVER_BUDGET_CLASS, BudgetState.OVER)
    show_created(environment, late)
    require(bool(late.warnings) and late.pod["spec"]["priority"] == 0, "the pod over budget was not marked as such")
    environment.screen.done(f"its class is [red]{names.OVER_BUDGET_CLASS}[/], priority 0")


def grant(environment: Environment) -> None:
    """Grants the team's budget money, after which its next pod is within budget again."""
    environment.screen.section("A grant brings it back")
    environment.command("grant", BUDGET, gpu_hours(GRANT_GPU_SECONDS), "--reason", "paper deadline")
    seen = environment.watch(BudgetState.OPEN)
    require(seen.available > ALLOWANCE_GPU_SECONDS * UNIT, f"the grant is not in {seen.available}")
    back = environment.next_pod("train-resnet-4", names.IN_BUDGET_CLASS, BudgetState.OPEN)
    require(back.pod["spec"]["priority"] > 0, "the pod within budget has no priority")
    show_created(environment, back)
    environment.screen.done(f"open again; the next pod is [green]{names.IN_BUDGET_CLASS}[/]")


def hold_and_release(environment: Environment) -> None:
    """Shows a budget that holds a pod behind a gate, and a grant that releases the pod."""
    environment.screen.section("Another team's budget holds: its pod waits for money")
    waiting = environment.next_pod("homework", names.IN_BUDGET_CLASS, BudgetState.HELD, HELD_NAMESPACE)
    gates = [gate["name"] for gate in waiting.pod["spec"].get("schedulingGates", [])]
    require(gates == [names.BUDGET_GATE], f"the gates of the held pod are {gates}")
    pod = environment.cluster.create(waiting.pod)
    show_created(environment, waiting, HELD_NAMESPACE)
    amount = gpu_hours(HELD_GRANT_GPU_SECONDS)
    environment.command("grant", HELD_BUDGET, amount, "--reason", "exam week")
    released = lambda: not environment.cluster.is_gated(pod)  # noqa: E731 - read once, here
    wait_until("the gate is lifted", released, environment.children, STEP_LIMIT_SECONDS)
    environment.screen.done("the timekeeper lifted the gate: the scheduler may place the pod")


def refuse(environment: Environment) -> None:
    """Shows the refusal of a manifest that cannot work, with all its faults."""
    environment.screen.section("A manifest that cannot work says so at once")
    document = manifest("wrong")
    environment.screen.command(f"kubectl -n {NAMESPACE} create -f wishful.yaml")
    refused = environment.admission.create(NAMESPACE, document)
    require(bool(refused.refusal), "the wrong manifest was admitted")
    environment.screen.output(f"Error from server: admission webhook denied the request:\n{refused.refusal}", "red")
    for part in ("gpu-core", "150", "gpu-memory", "vcuda-memory"):
        require(part in refused.refusal, f"the refusal does not name {part}: {refused.refusal}")
    environment.screen.done("refused: each field, what was given, what is allowed, what to write instead")


def check_the_ledger(environment: Environment) -> None:
    """Ends all pods, and checks that the ledger has exactly their cost, computed from their times and allocations."""
    environment.screen.section("The ledger is exact")
    end_sidecars(environment.children, environment.sidecars)
    expected = sum(cost(environment.cluster.finish(pod)) for pod in environment.bound)
    settled = lambda: environment.sessions() == 0 and environment.reading().rate == 0  # noqa: E731 - read once, here
    wait_until("every pod is settled", settled, environment.children, STEP_LIMIT_SECONDS)
    environment.command("budget", "list")
    spent = environment.reading().spent
    require(spent == expected, f"the ledger says {spent}, the pods' times say {expected} microGPU-seconds")
    environment.screen.done(f"{spent:,} microGPU-seconds in the ledger: what the pods' times come to, to the last one")


def show_created(environment: Environment, admitted: Admitted, namespace: str = NAMESPACE) -> None:
    """Shows the creation of an admitted pod as kubectl prints it.

    Args:
        environment: the state of the demonstration.
        admitted: the pod, with the warnings for its author.
        namespace: the pod's namespace.
    """
    name = admitted.pod["metadata"]["name"]
    environment.screen.command(f"kubectl -n {namespace} create -f {name}.yaml")
    environment.screen.output("\n".join(f"Warning: {line}" for line in admitted.warnings), "yellow")
    environment.screen.output(f"pod/{name} created")


ALL = (start_services, admit_dialects, spend, next_pod_yields, grant, hold_and_release, refuse, check_the_ledger)
