"""The reviews that the benchmarks of admission send: a pod of some four kilobytes, mutated and then validated."""

from __future__ import annotations

from tests.support.admission import SETTINGS, Pod, apply, container, knowing, pod, read_answer, review
from webhook.admission.review import answer


def four_kilobyte_pod() -> Pod:
    """A training pod as people have them: environment, volumes, a helper beside the main container."""
    environment = [{"name": f"SETTING_{index}", "value": "x" * 44} for index in range(26)]
    mounts = [{"name": f"volume-{index}", "mountPath": f"/data/{index}"} for index in range(6)]
    volumes = [
        {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": f"claim-{index}"}} for index in range(6)
    ]
    limits = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}
    main = container(
        limits={**limits, "nvidia.com/gpucores": "30"},
        env=environment,
        volumeMounts=mounts,
        command=["python", "-m", "train"],
        args=["--epochs", "100", "--batch-size", "256"],
    )
    helper = container("logs", {"cpu": "1", "memory": "256Mi"}, volumeMounts=mounts[:2])
    return pod(
        main,
        helper,
        annotations={"example.com/note": "n" * 200},
        metadata={"labels": {f"example.com/label-{index}": "v" * 20 for index in range(6)}},
        volumes=volumes,
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    )


def both_reviews() -> list[tuple[str, bytes]]:
    """Paths and bodies as an API server sends them for a new pod: to mutate it, and to validate what came of that."""
    item = four_kilobyte_pod()
    body = review(item)
    stored = apply(item, read_answer(answer("mutate", body, knowing(), SETTINGS, 0.0).body).patch)
    return [("/mutate", body), ("/validate", review(stored))]
