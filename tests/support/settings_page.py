"""Writes docs/reference/settings.md from the settings in the code: `python -m tests.support.settings_page`."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fairgpu.setting_faults import bounds, words
from fairgpu.settings import environment_name, fields
from nodeagent.settings import Settings as NodeagentSettings
from scheduler.settings import Settings as SchedulerSettings
from timekeeper.settings import Settings as TimekeeperSettings
from webhook.settings import Settings as WebhookSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
INTRODUCTION = f"""# Settings

Write settings into the file `settings.yaml` of [your overlay](../install.md#3-name-your-registry-and-your-settings),
with a key for each dot. `webhook.dialects.best_effort` is:

```yaml
webhook:
  dialects:
    best_effort: refuse
```

- **Environment.** Each setting can be in the environment, which overrides the file:
  `{environment_name(("webhook", "dialects", "best_effort"))}=refuse`. Write lists and maps as in YAML, `[a, b]`. Put
  passwords there, from a Secret.
- **A change** rolls out when you apply the overlay.
- **A mistake.** With an invalid value, or a key that is unknown or stands twice, the new pods do not start. Their log
  names the key, what was given and what is allowed. The old pods keep running. Two ports of one section are a mistake
  where they are the same, unless each has an address of its own.
- **Several snippets.** Each section (`webhook`, `timekeeper`, `scheduler`, `nodeagent`, `existing`) stands once: write
  the settings of all snippets that begin with `timekeeper:` under one `timekeeper:`.
- **Units.** Times are seconds; `_mib` is MiB.
"""


def page() -> str:
    """Returns the text of the whole page."""
    return INTRODUCTION + "".join(
        f"\n## {title}\n\n| setting | default | allowed | what it does |\n|---|---|---|---|\n"
        + "\n".join(rows(model))
        + "\n"
        for title, model in (
            ("The webhook", WebhookSettings),
            ("The timekeeper", TimekeeperSettings),
            ("The scheduler", SchedulerSettings),
            ("The node agent", NodeagentSettings),
        )
    )


def rows(model: type[BaseModel]) -> Iterator[str]:
    """Yields a row for each setting; those of a section that several services read come with the first service."""
    defaults = model()
    for path in fields(model):
        if path[0] == "existing" and model is not WebhookSettings:
            continue
        group: type[BaseModel] = model
        value: Any = defaults
        for name in path:
            info = group.model_fields[name]
            value = getattr(value, name)
            if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
                group = info.annotation
        what = " ".join((info.description or "").split())
        yield f"| `{'.'.join(path)}` | {shown(value)} | {allowed(info)} | {what} |"


def shown(value: Any) -> str:
    """Returns a default value as it would be written in the settings file, in backquotes; `none` if it is empty."""
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, tuple) and isinstance(value[0], BaseModel):
        value = [each.model_dump(exclude_defaults=True) for each in value]
    plain = value.value if isinstance(value, enum.Enum) else str(value) if isinstance(value, Path) else value
    text = plain if isinstance(plain, str) else json.dumps(plain, default=str)
    return f"`{text}`"


def allowed(info: FieldInfo) -> str:
    """Returns the bounds of a number, or the words that a setting may have; empty for neither."""
    return ", ".join(f"`{word}`" for word in words(info)) or bounds(info)


if __name__ == "__main__":
    PAGE.write_text(page())
