"""Settings and fault rules, and the HTTP paths by which tests set them.

``/_local/faults``    GET lists, POST adds one rule or a list of rules, DELETE clears.
``/_local/settings``  GET shows, POST changes, DELETE restores the defaults.

The paths answer without a signature, on loopback only, like the server itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from typing import Any

MODES = ("event", "call", "conditionalCreateOnly", "delay")
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "READ", "LIST", "STATUS")


@dataclasses.dataclass
class Settings:
    """What tests may change while the server runs."""

    #: Seconds between the acceptance of a Cloud Control operation and its end.
    cloud_control_delay: float = float(os.environ.get("CC_DELAY", "0.1"))
    #: "event": a refused model or create-only change ends in a FAILED event; "call": the call itself is refused.
    cloud_control_refusals: str = "event"
    #: Serve provisionable types for which the emulator has no service by storing their models.
    generic_types: bool = os.environ.get("CC_GENERIC_TYPES", "true").lower() == "true"
    #: History events at which a Standard execution fails.
    history_limit: int = 25_000
    #: Bytes that the input or output of a state, task or execution may have.
    state_data_limit: int = 262_144

    def change(self, values: dict[str, Any]) -> None:
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name, value in values.items():
            if name not in fields:
                raise ValueError(f"There is no setting {name!r}; there are {', '.join(fields)}")
            kind = type(fields[name].default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind:
                raise ValueError(f"The setting {name!r} takes a {kind.__name__}")
            if name == "cloud_control_refusals" and value not in ("event", "call"):
                raise ValueError("cloud_control_refusals is 'event' or 'call'")
        for name, value in values.items():
            setattr(self, name, float(value) if type(fields[name].default) is float else value)


@dataclasses.dataclass
class Fault:
    """One rule: which Cloud Control calls go wrong, how, and how often."""

    type: str = ""  #: type name; empty matches every type
    operation: str = ""  #: one of OPERATIONS; empty matches every operation
    match: str = ""  #: substring of the identifier, the desired state or the patch document
    times: int | None = 1  #: how many calls it hits; null for all
    mode: str = "event"  #: "event", "call", "conditionalCreateOnly" or "delay"
    after: bool = False  #: the work is really done before the failure is reported
    error: dict[str, Any] = dataclasses.field(default_factory=dict)
    delay: float | None = None  #: seconds until the event ends, instead of the setting
    hits: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is one of {', '.join(MODES)}")
        if self.operation and self.operation not in OPERATIONS:
            raise ValueError(f"operation is one of {', '.join(OPERATIONS)}")
        if self.mode == "delay" and self.delay is None:
            raise ValueError("mode delay needs a delay")
        if self.mode == "event" and self.operation in ("READ", "LIST", "STATUS"):
            raise ValueError(f"{self.operation} has no event, only a call")

    def fits(self, operation: str, type_name: str, text: str) -> bool:
        return ((not self.type or self.type == type_name) and (not self.operation or self.operation == operation)
                and self.match in text and (self.times is None or self.hits < self.times)
                and not (self.mode == "event" and operation in ("READ", "LIST", "STATUS")))


settings = Settings()
_faults: list[Fault] = []
_lock = threading.Lock()


def take_fault(operation: str, type_name: str, text: str, *modes: str) -> Fault | None:
    """The first rule of the given modes that fits; it counts as hit."""
    with _lock:
        for fault in _faults:
            if fault.mode in modes and fault.fits(operation, type_name, text):
                fault.hits += 1
                return fault
    return None


def clear_faults() -> None:
    with _lock:
        _faults.clear()


def _reset_settings() -> None:
    for field in dataclasses.fields(Settings):
        setattr(settings, field.name, field.default)


def _answer(status: int, body: Any) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"}, json.dumps(body).encode()


def handle(path: str, method: str, body: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """The answer to a request for one of the paths, or None for any other path."""
    if path not in ("/_local/faults", "/_local/settings"):
        return None
    try:
        data = json.loads(body) if body else None
        if path == "/_local/settings":
            if method == "POST":
                settings.change(data or {})
            elif method == "DELETE":
                _reset_settings()
            return _answer(200, dataclasses.asdict(settings))
        if method == "POST":
            rules = [Fault(**rule) for rule in (data if isinstance(data, list) else [data])]
            with _lock:
                _faults.extend(rules)
        elif method == "DELETE":
            clear_faults()
        with _lock:
            return _answer(200, {"faults": [dataclasses.asdict(fault) for fault in _faults]})
    except (TypeError, ValueError) as error:
        return _answer(400, {"message": str(error)})


def install() -> None:
    """Answer the paths next to the server's own configuration path."""
    from ministack import app

    original = app._handle_admin_config_request

    async def handle_admin(path: str, method: str, body: bytes) -> Any:
        return handle(path, method, body) or await original(path, method, body)

    app._handle_admin_config_request = handle_admin
